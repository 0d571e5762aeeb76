// `ckfs export`: a view as a directory on disk. A progress bar on a terminal, one line at the end.
//
// SIGINT and SIGTERM are waited for by a thread of their own: a handler could do nothing that the
// exporter needs done. A second signal ends the process at once; the record is good then, too.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <pthread.h>
#include <sys/ioctl.h>
#include <thread>
#include <unistd.h>

#include "api/report.h"
#include "base/start_thread.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/log.h"
#include "export/exporter.h"

namespace ckfs::cli {

namespace {

using Clock = std::chrono::steady_clock;

struct ExportCommand {
  CommonOptions common;
  std::string source;
  std::string view;
  std::string out;
  bool force = false;
};

sigset_t ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

/// Turns the first SIGINT or SIGTERM into a stop request. Requires: made before other threads,
/// which inherit the mask. Where no thread can be started a signal ends the process at once, which
/// the record survives.
class SignalWatch {
 public:
  SignalWatch() {
    const sigset_t signals = ending_signals();
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    thread_ = start_thread([this] {
      const sigset_t watched = ending_signals();
      while (true) {
        if (sigwaitinfo(&watched, nullptr) < 0) continue;
        if (ended_) return;
        if (stop_.stop_requested()) ::_exit(static_cast<int>(Exit::Failed));
        stop_.request_stop();
      }
    });
    if (!thread_) pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  }
  ~SignalWatch() {
    if (!thread_) return;
    ended_ = true;
    pthread_kill(thread_->native_handle(), SIGTERM);  // blocked there, so it only ends the wait
    thread_->join();
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  std::stop_token token() const { return stop_.get_token(); }

 private:
  std::stop_source stop_;
  std::atomic<bool> ended_ = false;
  std::optional<std::thread> thread_;
};

/// One line on stderr, drawn over and over; nothing where stderr is no terminal.
class ProgressBar {
 public:
  explicit ProgressBar(bool shown) : shown_(shown), begin_(Clock::now()) {}
  ~ProgressBar() { clear(); }

  void show(std::uint64_t done, std::uint64_t total) {
    if (!shown_) return;
    const Clock::time_point now = Clock::now();
    if (!drawn_) at_start_ = done;
    if (drawn_ && done < total && now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    drawn_ = true;
    const double seconds = std::chrono::duration<double>(now - begin_).count();
    const double speed = seconds > 0 ? static_cast<double>(done - at_start_) / seconds : 0;
    const double part = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
    std::string line =
        fmt::format("{:3.0f}%  {} of {}  {}/s", part * 100, human_size(done), human_size(total),
                    human_size(static_cast<std::uint64_t>(speed)));
    if (speed > 0 && done < total) {
      const auto left = static_cast<std::uint64_t>(static_cast<double>(total - done) / speed);
      line += fmt::format("  {}:{:02}:{:02} left", left / 3600, left / 60 % 60, left % 60);
    }
    winsize window{};
    const std::size_t columns =
        ::ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 ? window.ws_col : 80;
    if (columns > line.size() + 8) {
      const std::size_t width = std::min<std::size_t>(columns - line.size() - 5, 40);
      const auto filled = static_cast<std::size_t>(part * static_cast<double>(width));
      line = fmt::format("[{:<{}}] {}", std::string(std::min(filled, width), '#'), width, line);
    }
    std::fprintf(stderr, "\r%s\033[K", line.substr(0, columns - 1).c_str());
    std::fflush(stderr);
  }

  void clear() {
    if (drawn_) std::fputs("\r\033[K", stderr);
    drawn_ = false;
  }

 private:
  bool shown_;
  bool drawn_ = false;
  std::uint64_t at_start_ = 0;
  Clock::time_point begin_;
  Clock::time_point last_;
};

Result<void> export_to_directory(const ExportCommand& command, unsigned jobs) {
  CKFS_TRY_VOID(start_log(command.common));
  const SignalWatch signals;
  CKFS_TRY(const Checkpoint checkpoint, Checkpoint::open(command.source, command.common.open));
  CKFS_TRY(const View view, checkpoint.view(command.view));
  ProgressBar bar(::isatty(STDERR_FILENO) == 1);
  const Clock::time_point begin = Clock::now();
  Result<ExportResult> exported = export_view(
      checkpoint, view, command.source, command.out,
      {.jobs = jobs,
       .force = command.force,
       .stop = signals.token(),
       .progress = [&](std::uint64_t done, std::uint64_t total) { bar.show(done, total); }});
  bar.clear();
  CKFS_TRY(const ExportResult result, std::move(exported));
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::string line = fmt::format("{}: {} of {} in {} files, {:.1f} s", command.out, view.name(),
                                 human_size(result.bytes), result.files, seconds);
  if (result.files_kept > 0) {
    line += fmt::format("; {} files were there already", result.files_kept);
  }
  return print(one_line(line) + "\n");
}

}  // namespace

void add_export(CLI::App& app, Action& action) {
  auto command = std::make_shared<ExportCommand>();
  auto jobs = std::make_shared<unsigned>(0);
  CLI::App* verb = app.add_subcommand("export", "write a view's files to a directory");
  verb->add_option("SRC", command->source, "directory, file or hub cache entry")->required();
  verb->add_option("VIEW", command->view, "such as bf16-safetensors")->required();
  verb->add_option("OUT", command->out, "directory to write; made if it is missing")->required();
  verb->add_option_function<std::string>(
          "--jobs",
          [jobs](const std::string& value) {
            const Result<std::uint64_t> number = parse_number("--jobs", value);
            if (!number) throw CLI::ValidationError(number.error().message());
            if (*number > 1024) {
              throw CLI::ValidationError(
                  fmt::format("--jobs: {} are too many (at most 1024)", *number));
            }
            *jobs = static_cast<unsigned>(*number);
          },
          "files written at a time (default: one for each CPU)")
      ->type_name("N");
  verb->add_flag("--force", command->force, "also into a directory that holds other files");
  add_common(*verb, command->common, Tuning::Yes);
  verb->callback([command, jobs, &action] {
    action = [command, jobs] { return export_to_directory(*command, *jobs); };
  });
}

}  // namespace ckfs::cli
