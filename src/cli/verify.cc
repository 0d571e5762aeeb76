// `ckfs verify`: is a copy of a view right. Exit code 0: equal, 1: different, 2: it could not tell.
#include "check/verify.h"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ckfs/check.h>

#include "api/report_json.h"
#include "api/result_json.h"
#include "base/size_text.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "cli/cli.h"
#include "cli/log.h"
#include "cli/progress.h"
#include "cli/running.h"

namespace ckfs::cli {

namespace {

/// The longest list of digests, and the longest line: a path and the digests of one file.
constexpr std::uint64_t kMaxDigests = 256_MiB;
constexpr std::size_t kMaxDigestLine = 64_KiB;

/// How long a signal may wait for a list that does not come.
constexpr int kLook = 100;  // milliseconds

struct VerifyCommand {
  CommonOptions common;
  std::string source;
  std::string view;
  std::string copy;
  unsigned jobs = 0;
  double sample = 1;
  std::string resume;
  bool json = false;
  ProgressOptions progress;
};

/// The text of a digest file. nullopt: it is a directory. A list without end (a device, a program
/// that writes on) is an error, after little text where it has no lines.
Result<std::optional<std::string>> read_digests(const std::string& path,
                                                const std::stop_token& stop) {
  const UniqueFd fd(path == "-" ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && errno == ENOENT) {
    return fail(ErrorCode::NotFound,
                "{}: no such file or directory (a copy of the view, or a list of its digests)",
                path);
  }
  if (!fd) return system_failure(errno, path, "open");
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) return system_failure(errno, path, "look");
  if (S_ISDIR(status.st_mode)) return std::nullopt;
  std::string text;
  std::size_t line = 0;  // where the last one begins
  std::vector<char> piece(std::size_t{1} << 16);
  for (;;) {
    pollfd more{.fd = fd.get(), .events = POLLIN, .revents = 0};
    if (stop.stop_requested()) {
      return fail(ErrorCode::Stopped, "{}: interrupted before all of the list was read", path);
    }
    if (::poll(&more, 1, kLook) <= 0) continue;
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_failure(errno, path, "read");
    if (got == 0) return text;
    const std::string_view here(piece.data(), static_cast<std::size_t>(got));
    if (const auto end = here.rfind('\n'); end != std::string_view::npos) {
      line = text.size() + end + 1;
    }
    text.append(here);
    const bool json = trim(std::string_view(text).substr(0, kMaxDigestLine)).starts_with('{');
    if (!json && text.size() - line > kMaxDigestLine) {
      return fail(ErrorCode::InvalidArgument,
                  "{}: not a list of digests: a line has more than {} bytes", path, kMaxDigestLine);
    }
    if (text.size() > kMaxDigests) {
      return fail(ErrorCode::InvalidArgument,
                  "{}: a list of digests of more than {} bytes (compare it in parts)", path,
                  kMaxDigests);
    }
  }
}

/// A sentence on what the comparison of some pieces proves.
std::string proof(const VerifyResult& result) {
  const double missed = std::pow(0.99, static_cast<double>(result.compared));
  return fmt::format(
      "{} of {} pieces of 1 MiB, chosen by chance, were compared, and all sizes; a copy with 1 "
      "wrong "
      "piece in 100 would pass with a probability of {:.2g}",
      result.compared, result.pieces, missed);
}

std::string result_text(const VerifyCommand& command, const View& view,
                        const VerifyResult& result) {
  std::string lines;
  for (const Difference& difference : result.differences) {
    lines += one_line(fmt::format("{}: {}", difference.path, difference.text)) + "\n";
  }
  if (result.differing > result.differences.size()) {
    lines += fmt::format("and {} more\n", result.differing - result.differences.size());
  }
  const std::string amount =
      fmt::format("{} files, {} compared", result.files, human_size(result.bytes));
  lines +=
      one_line(result.differing == 0
                   ? fmt::format("{}: no difference from {}: {}", command.copy, view.name(), amount)
                   : fmt::format("{}: {} files differ from {}: {}", command.copy, result.differing,
                                 view.name(), amount));
  if (result.bytes_kept > 0) {
    lines += fmt::format(", {} of it by an earlier run", human_size(result.bytes_kept));
  }
  if (command.sample < 1) lines += "; " + proof(result);
  return lines + "\n";
}

std::string result_json(const VerifyCommand& command, const View& view, const VerifyResult& result,
                        const Progress& progress) {
  nlohmann::ordered_json json = begin_result(view, shown_source(command.source));
  json["copy"] = command.copy;
  json["seconds"] = progress.seconds();
  json.update(json_members(result, command.sample));
  return render(json);
}

Result<Exit> verify(const VerifyCommand& command) {
  CKFS_TRY_VOID(start_log(command.common));
  const SignalWatch signals(Exit::CannotTell);
  CKFS_TRY(const auto text, read_digests(command.copy, signals.token()));
  if (text && command.sample < 1) {
    return fail(ErrorCode::InvalidArgument,
                "--sample: {}: a list of digests is compared file by file, not in samples",
                command.copy);
  }
  CKFS_TRY(const Checkpoint checkpoint, open_source(command.source, command.common));
  CKFS_TRY(const View view, checkpoint.view(command.view));
  if (command.sample == 1) say_what_is_fetched(command.progress, view, command.source);
  Progress progress(command.progress, "verify");
  const VerifyOptions options{
      .jobs = command.jobs > 0 ? command.jobs : command.common.open.use.threads,
      .stop = signals.token(),
      .progress = [&](std::uint64_t bytes, std::uint64_t total) { progress.show(bytes, total); },
      .sample = command.sample,
      .resume = command.resume};
  const auto compare = [&]() -> Result<VerifyResult> {
    if (!text) return verify_copy(view, command.copy, options);
    const Result<std::vector<FileDigest>> digests = parse_digests(*text);
    if (!digests) return Failure(digests.error().within(command.copy));
    return verify_digests(view, *digests, command.copy, options);
  };
  const Result<VerifyResult> compared = compare();
  progress.end();
  CKFS_TRY(const VerifyResult result, compared);
  CKFS_TRY_VOID(print(command.json ? result_json(command, view, result, progress)
                                   : result_text(command, view, result)));
  return result.differing == 0 ? Exit::Done : Exit::Failed;
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto command = std::make_shared<VerifyCommand>();
  CLI::App* verb = app.add_subcommand("verify", "compare a copy with the view, byte for byte");
  verb->add_option("SRC", command->source, kSourceText)->required();
  verb->add_option("VIEW", command->view, kViewText)->required();
  verb->add_option("COPY", command->copy,
                   "a directory, or a file of digests as ckfs digest prints them (-: from stdin)")
      ->required();
  CLI::Option* const resume =
      verb->add_option(
              "--resume", command->resume,
              "record progress in FILE, so that the next run continues after an interruption")
          ->type_name("FILE");
  verb->add_flag("--json", command->json, "print the result as JSON");
  verb->add_option_function<std::string>(
          "--sample",
          [command](const std::string& value) {
            const char* const end = value.data() + value.size();
            const auto parsed = std::from_chars(value.data(), end, command->sample);
            if (parsed.ec != std::errc() || parsed.ptr != end || !(command->sample > 0) ||
                command->sample > 1) {
              throw CLI::ValidationError(fmt::format(
                  "--sample: \"{}\" is not a share (more than 0, at most 1)", one_line(value)));
            }
          },
          "compare a random share of the bytes, such as 0.01, and say what that proves")
      ->type_name("SHARE")
      ->excludes(resume);
  add_number(*verb, "--jobs", 0, 1024, command->jobs,
             "pieces compared at a time (default: --threads, else one for each CPU)");
  add_progress(*verb, command->progress);
  add_common(*verb, command->common, Tuning::Yes);
  verb->callback([command, &action] {
    action = [command] { return verify(*command); };
    action.failed = Exit::CannotTell;
  });
}

}  // namespace ckfs::cli
