// `ckfs digest`: digests of a view's files, which need not be written for that.
#include "check/digest.h"

#include <filesystem>
#include <span>
#include <unistd.h>

#include <ckfs/check.h>

#include "base/size_text.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/log.h"
#include "cli/progress.h"
#include "cli/running.h"

namespace ckfs::cli {

namespace {

struct DigestCommand {
  CommonOptions common;
  std::string source;
  std::string view;
  std::vector<Algorithm> algorithms;
  unsigned jobs = 0;
  bool tagged = false;
  bool json = false;
  std::string output;
  ProgressOptions progress;
};

/// Writes to a file, which gets its name when all digests are in it. An interrupted run leaves
/// FILE.partial, and the next run continues from there.
Result<void> digest_to_file(const DigestCommand& command, const View& view, bool tagged,
                            DigestOptions options, Progress& progress) {
  options.resume = command.output + ".partial";
  const Result<DigestResult> done = digest_view(view, options);
  progress.end();
  if (!done && done.error().code() == ErrorCode::Stopped) {
    return interrupted(command.output, progress, "the same command continues from there");
  }
  CKFS_TRY(const DigestResult result, done);
  const std::vector<FileDigest>& digests = result.files;
  std::string text;
  if (command.json) {
    text = digests_json(view, shown_source(command.source), digests);
  } else {
    for (const FileDigest& digest : digests) text += check_lines(digest, tagged);
  }
  CKFS_TRY_VOID(replace_file(command.output, text));
  if (std::error_code error; !std::filesystem::remove(options.resume, error) && error) {
    return system_failure(error.value(), options.resume.native(), "remove");
  }
  std::string line = fmt::format("{}: digests of {} files, {}, {:.1f} s", command.output,
                                 digests.size(), human_size(progress.total()), progress.seconds());
  if (result.files_kept > 0) {
    line += fmt::format("; {} of them by an earlier run", result.files_kept);
  }
  return print(one_line(line) + "\n");
}

Result<void> digest(const DigestCommand& command) {
  CKFS_TRY_VOID(start_log(command.common));
  const SignalWatch signals;
  CKFS_TRY(const Checkpoint checkpoint, open_source(command.source, command.common));
  CKFS_TRY(const View view, checkpoint.view(command.view));
  // Without a tag a line does not name the algorithm of its sum.
  const bool tagged = command.tagged || command.algorithms.size() > 1;
  // On a terminal the digests themselves show how far it is; a bar would be drawn into them.
  const bool lines_show = command.output.empty() && !command.json && ::isatty(STDOUT_FILENO) == 1;
  ProgressOptions progress_options = command.progress;
  if (lines_show && progress_options.mode == ProgressMode::Auto) {
    progress_options.mode = ProgressMode::None;
  }
  say_what_is_fetched(command.progress, view, command.source);
  Progress progress(progress_options, "digest");
  DigestOptions options{
      .jobs = command.jobs > 0 ? command.jobs : command.common.open.use.threads,
      .stop = signals.token(),
      .progress = [&](std::uint64_t bytes, std::uint64_t total) { progress.show(bytes, total); }};
  if (!command.algorithms.empty()) options.algorithms = command.algorithms;
  if (!command.output.empty()) return digest_to_file(command, view, tagged, options, progress);
  bool read = true;
  options.each = [&](const FileDigest& digest) -> Result<void> {
    if (command.json) return {};
    const std::string lines =
        check_lines(digest, tagged, lines_show ? NamesFor::Terminal : NamesFor::Programs);
    CKFS_TRY(read, write_stdout(std::as_bytes(std::span(lines))));
    if (!read) return fail(ErrorCode::Io, "stdout: closed by its reader");  // ends the others
    return {};
  };
  const Result<DigestResult> done = digest_view(view, options);
  progress.end();
  if (!read) return {};
  if (!done && done.error().code() == ErrorCode::Stopped) {
    return interrupted(view.name(), progress,
                       "with --output FILE the next run continues from there");
  }
  CKFS_TRY(const DigestResult result, done);
  if (!command.json) return {};
  return print(digests_json(view, shown_source(command.source), result.files));
}

}  // namespace

void add_digest(CLI::App& app, Action& action) {
  auto command = std::make_shared<DigestCommand>();
  CLI::App* verb = app.add_subcommand("digest", "print digests of a view's files");
  verb->add_option("SRC", command->source, kSourceText)->required();
  verb->add_option("VIEW", command->view, kViewText)->required();
  verb->add_option_function<std::vector<std::string>>(
          "--algorithm",
          [command](const std::vector<std::string>& names) {
            for (const std::string& name : names) {
              const auto algorithm = parse_algorithm(name);
              if (!algorithm) {
                throw CLI::ValidationError(fmt::format(
                    "--algorithm: \"{}\" is not one of sha256, crc32c, xxh128", one_line(name)));
              }
              command->algorithms.push_back(*algorithm);
            }
          },
          "checksum algorithm (default sha256; repeatable, the view is read only once)")
      ->type_name("sha256|crc32c|xxh128")
      ->allow_extra_args(false);
  verb->add_option(
          "-o,--output", command->output,
          "write to FILE when all is done; after an interruption, continue from FILE.partial")
      ->type_name("FILE");
  verb->add_flag("--tag-lines", command->tagged,
                 "print lines with the algorithm's name: SHA256 (PATH) = SUM");
  verb->add_flag("--json", command->json,
                 "print JSON, with sizes, the view and the source's fingerprint");
  add_number(*verb, "--jobs", 0, 1024, command->jobs,
             "files read at a time (default: --threads, else one for each CPU)");
  add_progress(*verb, command->progress);
  add_common(*verb, command->common, Tuning::Yes);
  verb->callback([command, &action] { action = [command] { return digest(*command); }; });
}

}  // namespace ckfs::cli
