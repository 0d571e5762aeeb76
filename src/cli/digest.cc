// `ckfs digest`: digests of a view's files, which need not be written for that.
#include "check/digest.h"

#include <numeric>
#include <span>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/log.h"
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
};

Result<void> digest(const DigestCommand& command) {
  CKFS_TRY_VOID(start_log(command.common));
  const SignalWatch signals;
  CKFS_TRY(const Checkpoint checkpoint,
           Checkpoint::open(command.source, open_options(command.common)));
  CKFS_TRY(const View view, checkpoint.view(command.view));
  std::vector<Algorithm> algorithms = command.algorithms;
  if (algorithms.empty()) algorithms.push_back(Algorithm::Sha256);
  // Without a tag nobody could say what a line's sum is of.
  const bool tagged = command.tagged || algorithms.size() > 1;
  std::vector<std::size_t> files(view.files().size());
  std::iota(files.begin(), files.end(), std::size_t{0});
  std::vector<FileDigest> digests;
  // On a terminal the lines themselves show how far it is; a bar would be drawn into them.
  const bool lines_show = !command.json && ::isatty(STDOUT_FILENO) == 1;
  ProgressBar bar;
  bool read = true;
  const Result<void> done =
      digest_files(view, files, algorithms,
                   {.jobs = command.jobs > 0 ? command.jobs : command.common.open.threads,
                    .stop = signals.token(),
                    .progress =
                        [&](std::uint64_t bytes, std::uint64_t total) {
                          if (!lines_show) bar.show(bytes, total);
                        }},
                   [&](const FileDigest& digest) -> Result<void> {
                     if (command.json) {
                       digests.push_back(digest);
                       return {};
                     }
                     const std::string lines = check_lines(
                         digest, tagged, lines_show ? NamesFor::Terminal : NamesFor::Programs);
                     CKFS_TRY(read, write_stdout(std::as_bytes(std::span(lines))));
                     if (!read)
                       return fail(ErrorCode::Io, "stdout: nobody reads");  // ends the others
                     return {};
                   });
  bar.clear();
  if (!read) return {};
  CKFS_TRY_VOID(done);
  if (!command.json) return {};
  return print(digests_json(checkpoint, view, command.source, digests));
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
                    "--algorithm: \"{}\" is none of sha256, crc32c, xxh128", one_line(name)));
              }
              command->algorithms.push_back(*algorithm);
            }
          },
          "checksum algorithm (default sha256; repeatable, the view is read only once)")
      ->type_name("sha256|crc32c|xxh128")
      ->allow_extra_args(false);
  verb->add_flag("--tag-lines", command->tagged,
                 "print lines with the algorithm's name: SHA256 (PATH) = SUM");
  verb->add_flag("--json", command->json, "print JSON, with sizes and provenance");
  add_number(*verb, "--jobs", 0, 1024, command->jobs,
             "files read at a time (default: --threads, else one for each CPU)");
  add_common(*verb, command->common, Tuning::Yes);
  verb->callback([command, &action] { action = [command] { return digest(*command); }; });
}

}  // namespace ckfs::cli
