// `ckfs export`: a view as a directory on disk. A progress bar on a terminal, one line at the end.
//
// By one process, or by as many as a launcher has started (launcher.h): then each writes its part.
#include <chrono>
#include <cstdlib>
#include <optional>

#include "api/report.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/log.h"
#include "cli/running.h"
#include "export/exporter.h"
#include "export/fleet.h"
#include "export/launcher.h"
#include "export/rank_export.h"

namespace ckfs::cli {

namespace {

using Clock = std::chrono::steady_clock;

struct ExportCommand {
  CommonOptions common;
  std::string source;
  std::string view;
  std::string out;
  bool force = false;
  bool finish = false;
  unsigned jobs = 0;
  std::optional<unsigned> rank, world;
  std::optional<Split> split;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Result<std::string> export_whole(const ExportCommand& command, const Checkpoint& checkpoint,
                                 const View& view, const ExportOptions& options) {
  const Clock::time_point begin = Clock::now();
  CKFS_TRY(const ExportResult result,
           export_view(checkpoint, view, command.source, command.out, options));
  std::string line = fmt::format("{}: {} of {} in {} files, {:.1f} s", command.out, view.name(),
                                 human_size(result.bytes), result.files, seconds_since(begin));
  if (result.files_kept > 0) {
    line += fmt::format("; {} files were there already", result.files_kept);
  }
  return line;
}

Result<std::string> export_part(const ExportCommand& command, const FleetPlace& place,
                                const Checkpoint& checkpoint, const View& view,
                                const ExportOptions& options) {
  const Clock::time_point begin = Clock::now();
  CKFS_TRY(
      const RankResult result,
      export_rank(
          checkpoint, view, command.source, command.out,
          {.common = options, .rank = place.rank, .world = place.world, .split = command.split}));
  std::string line = fmt::format("{}: rank {} of {} ({}): {} of {}, {:.1f} s", command.out,
                                 place.rank, place.world, place.source, view.name(),
                                 human_size(result.bytes), seconds_since(begin));
  if (result.bytes_kept > 0) {
    line += fmt::format("; {} were there already", human_size(result.bytes_kept));
  }
  return line + "; " + (result.finished ? "all is finished" : result.lacks);
}

Result<void> export_to_directory(const ExportCommand& command) {
  CKFS_TRY_VOID(start_log(command.common));
  std::optional<FleetPlace> place;
  if (!command.finish) {
    CKFS_TRY(place, find_place(command.rank, command.world,
                               [](const char* name) -> std::optional<std::string> {
                                 const char* const value = std::getenv(name);
                                 return value ? std::optional<std::string>(value) : std::nullopt;
                               }));
  }
  const SignalWatch signals;
  CKFS_TRY(const Checkpoint checkpoint,
           Checkpoint::open(command.source, open_options(command.common)));
  CKFS_TRY(const View view, checkpoint.view(command.view));
  if (command.finish) {
    CKFS_TRY_VOID(finish_export(checkpoint, view, command.source, command.out));
    return print(one_line(fmt::format("{}: {} is finished", command.out, view.name())) + "\n");
  }
  ProgressBar bar;
  const ExportOptions options{
      // Who limits the threads that compute means this, too.
      .jobs = command.jobs > 0 ? command.jobs : command.common.open.threads,
      .force = command.force,
      .stop = signals.token(),
      .progress = [&](std::uint64_t done, std::uint64_t total) { bar.show(done, total); }};
  Result<std::string> line = place ? export_part(command, *place, checkpoint, view, options)
                                   : export_whole(command, checkpoint, view, options);
  bar.clear();
  CKFS_TRY(const std::string text, std::move(line));
  return print(one_line(text) + "\n");
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
  verb->add_flag("--force", command->force, "export into a directory that holds other files, too");
  const std::string group = "Several processes";
  add_number(*verb, "--rank", 0, kMostRanks - 1, command->rank,
             "number of this part, from 0 (default: what the launcher says: srun, an array or "
             "Indexed Job, mpirun, torchrun; else there is one part)")
      ->group(group);
  add_number(*verb, "--world", 1, kMostRanks, command->world, "number of parts")->group(group);
  CLI::Option* const finish = verb->add_flag(
      "--finish", command->finish,
      "finish a multi-process export: rename the files if all parts are complete, otherwise list "
      "what is missing");
  finish->group(group)->excludes("--rank")->excludes("--world");
  verb->add_option_function<std::string>(
          "--split",
          [command](const std::string& value) {
            if (value != "ranges" && value != "files") {
              throw CLI::ValidationError(
                  fmt::format("--split: \"{}\" is none of ranges, files", value));
            }
            command->split = value == "files" ? Split::Files : Split::Ranges;
          },
          "how work is divided among processes: byte ranges or whole files (default: ranges, where "
          "OUT takes writes at offsets)")
      ->type_name("ranges|files")
      ->group(group);
  add_common(*verb, command->common, Tuning::Yes);
  verb->callback([command, &action] {
    if (command->rank) {
      const auto place = find_place(command->rank, command->world, {});
      if (!place) throw CLI::ValidationError(place.error().message());
    }
    action = [command] { return export_to_directory(*command); };
  });
}

}  // namespace ckfs::cli
