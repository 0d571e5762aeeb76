// `ckfs export`: writes a view as a directory on disk. Shows progress, and one line at the end.
//
// One process writes the view; with --distributed or --rank each of several (launcher.h) writes a
// part.
#include <cstdlib>
#include <optional>
#include <spdlog/spdlog.h>

#include <ckfs/export.h>

#include "api/report_json.h"
#include "api/result_json.h"
#include "base/size_text.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/log.h"
#include "cli/progress.h"
#include "cli/running.h"
#include "export/exporter.h"
#include "export/fleet.h"
#include "export/launcher.h"
#include "export/rank_export.h"

namespace ckfs::cli {

namespace {

using Json = nlohmann::ordered_json;

struct ExportCommand {
  CommonOptions common;
  std::string source;
  std::string view;
  std::string out;
  bool force = false;
  bool finish = false;
  bool distributed = false;
  bool json = false;
  unsigned jobs = 0;
  std::optional<unsigned> rank, world;
  std::optional<Split> split;
  ProgressOptions progress;
};

/// The result of a run: a line for people, and members for programs.
struct Outcome {
  std::string line;
  Json members;
};

Result<Outcome> export_whole(const ExportCommand& command, const View& view,
                             const ExportOptions& options, const Progress& progress) {
  CKFS_TRY(const ExportResult result, export_view(view, command.out, options));
  std::string line = fmt::format("{}: {} of {} in {} files, {:.1f} s", command.out, view.name(),
                                 human_size(result.bytes), result.files, progress.seconds());
  if (result.files_kept > 0) {
    line += fmt::format("; {} files were there already", result.files_kept);
  }
  if (!result.replaced.empty()) line += fmt::format("; replaced {}", result.replaced);
  return Outcome{std::move(line), json_members(result)};
}

Result<Outcome> export_part(const ExportCommand& command, const FleetPlace& place, const View& view,
                            const ExportOptions& options, const Progress& progress) {
  CKFS_TRY(
      const RankResult result,
      export_rank(
          view, command.out,
          {.common = options, .rank = place.rank, .world = place.world, .split = command.split}));
  std::string line = fmt::format("{}: rank {} of {} ({}): {} of {}, {:.1f} s", command.out,
                                 place.rank, place.world, place.source, view.name(),
                                 human_size(result.bytes), progress.seconds());
  if (result.bytes_kept > 0) {
    line += fmt::format("; {} were there already", human_size(result.bytes_kept));
  }
  line += result.finished ? "; all is finished"
                          : fmt::format("; this part is done, others are not: {}", result.missing);
  return Outcome{std::move(line),
                 {{"finished", result.finished},
                  {"bytes", result.bytes},
                  {"bytes_kept", result.bytes_kept},
                  {"rank", place.rank},
                  {"world", place.world},
                  {"rank_from", place.source},
                  {"missing", result.finished ? Json() : Json(result.missing)}}};
}

std::optional<std::string> environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? std::optional<std::string>(value) : std::nullopt;
}

/// nullopt: this process writes everything. Parts only where they were asked for: the variables of
/// a launcher are in every shell of such a job.
Result<std::optional<FleetPlace>> place_of(const ExportCommand& command) {
  if (command.finish) return std::nullopt;
  if (!command.distributed) {
    const auto launcher = find_launcher(Launched::AsOneOfSeveral, environment);
    if (launcher && !command.rank) {
      spdlog::warn(
          "{}: started by {}, which is ignored: this process exports everything "
          "(--distributed exports a part)",
          command.out, *launcher);
    }
    return find_place(command.rank, command.world,
                      [](const char*) -> std::optional<std::string> { return std::nullopt; });
  }
  if (!find_launcher(Launched::AtAll, environment)) {
    return fail(ErrorCode::InvalidArgument,
                "--distributed: no launcher has set its variables here (--rank R --world N)");
  }
  return find_place(command.rank, command.world, environment);
}

Result<void> export_to_directory(const ExportCommand& command) {
  CKFS_TRY_VOID(start_log(command.common));
  CKFS_TRY(const std::optional<FleetPlace> place, place_of(command));
  const SignalWatch signals;
  CKFS_TRY(const Checkpoint checkpoint, open_source(command.source, command.common));
  CKFS_TRY(const View view, checkpoint.view(command.view));
  if (!command.finish && !place) say_what_is_fetched(command.progress, view, command.source);
  Progress progress(command.progress, "export");
  const auto outcome = [&]() -> Result<Outcome> {
    if (command.finish) {
      CKFS_TRY_VOID(finish_export(view, command.out));
      return Outcome{fmt::format("{}: {} is finished", command.out, view.name()),
                     {{"finished", true}}};
    }
    const ExportOptions options{
        // A limit on the threads that compute means these, too.
        .jobs = command.jobs > 0 ? command.jobs : command.common.open.use.threads,
        .force = command.force,
        .stop = signals.token(),
        .progress = [&](std::uint64_t done, std::uint64_t total) { progress.show(done, total); }};
    return place ? export_part(command, *place, view, options, progress)
                 : export_whole(command, view, options, progress);
  };
  const Result<Outcome> ended = outcome();
  progress.end();
  if (!ended) return Failure(ended.error());
  if (!command.json) return print(one_line(ended->line) + "\n");
  Json json = begin_result(view, shown_source(command.source));
  json["out"] = command.out;
  json["seconds"] = progress.seconds();
  json.update(ended->members);
  return print(render(json));
}

}  // namespace

void add_export(CLI::App& app, Action& action) {
  auto command = std::make_shared<ExportCommand>();
  CLI::App* verb = app.add_subcommand("export", "write a view's files to a directory");
  verb->add_option("SRC", command->source, kSourceText)->required();
  verb->add_option("VIEW", command->view, kViewText)->required();
  verb->add_option("OUT", command->out, "directory to write; made if it is missing")->required();
  add_number(*verb, "--jobs", 0, 1024, command->jobs,
             "files written at a time (default: --threads, else one for each CPU)");
  verb->add_flag("--force", command->force,
                 "replace another export in OUT, or write beside files that ckfs did not write");
  verb->add_flag("--json", command->json, "print the result as JSON");
  const std::string group = "Several processes";
  CLI::Option* const distributed = verb->add_flag(
      "--distributed", command->distributed,
      "write only a part: the one that the launcher's variables name (srun, a Slurm array, an "
      "Indexed Job, mpirun, torchrun)");
  CLI::Option* const rank = add_number(*verb, "--rank", 0, kMostRanks - 1, command->rank,
                                       "write only this part, counted from 0; needs --world");
  add_number(*verb, "--world", 1, kMostRanks, command->world, "number of parts")->group(group);
  CLI::Option* const finish = verb->add_flag(
      "--finish", command->finish,
      "finish an export in parts: rename the files if all parts are complete, otherwise list what "
      "is missing");
  distributed->group(group);
  rank->group(group)->excludes(distributed);
  finish->group(group)->excludes("--rank")->excludes("--world")->excludes(distributed);
  verb->add_option_function<std::string>(
          "--split",
          [command](const std::string& value) {
            if (value != "ranges" && value != "files") {
              throw CLI::ValidationError(
                  fmt::format("--split: \"{}\" is not one of ranges, files", one_line(value)));
            }
            command->split = value == "files" ? Split::Files : Split::Ranges;
          },
          "how work is divided among processes: byte ranges or whole files (default: ranges, or "
          "the "
          "weights of a view that quantizes, where OUT takes writes at offsets)")
      ->type_name("ranges|files")
      ->group(group);
  add_progress(*verb, command->progress);
  add_common(*verb, command->common, Tuning::Yes);
  verb->callback([command, &action] {
    if (command->world && !command->rank && !command->distributed) {
      throw CLI::ValidationError("--world needs --rank R or --distributed");
    }
    if (command->rank) {
      const auto place = find_place(command->rank, command->world, {});
      if (!place) throw CLI::ValidationError(place.error().message());
    }
    action = [command] { return export_to_directory(*command); };
  });
}

}  // namespace ckfs::cli
