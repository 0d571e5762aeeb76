// SIGINT and SIGTERM are waited for by a thread of their own: a handler could do nothing that the
// verb needs done.
#include "cli/running.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <pthread.h>
#include <string>
#include <sys/ioctl.h>
#include <unistd.h>

#include "api/report.h"
#include "base/start_thread.h"
#include "base/text.h"

namespace ckfs::cli {

namespace {

/// Not an ignored SIGINT (a shell's background job): blocked, it would be queued all the same.
sigset_t ending_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  struct sigaction now{};
  const bool ignored = ::sigaction(SIGINT, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
  if (!ignored) sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

SignalWatch::SignalWatch(Exit second) {
  const sigset_t signals = ending_signals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = start_thread([this, second] {
    const sigset_t watched = ending_signals();
    while (true) {
      if (sigwaitinfo(&watched, nullptr) < 0) continue;
      if (ended_) return;
      if (stop_.stop_requested()) ::_exit(static_cast<int>(second));
      stop_.request_stop();
    }
  });
  if (!thread_) pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

SignalWatch::~SignalWatch() {
  if (!thread_) return;
  ended_ = true;
  pthread_kill(thread_->native_handle(), SIGTERM);  // blocked there, so it only ends the wait
  thread_->join();
}

ProgressBar::ProgressBar() : shown_(::isatty(STDERR_FILENO) == 1), begin_(Clock::now()) {}

void ProgressBar::show(std::uint64_t done, std::uint64_t total) {
  if (!shown_) return;
  const Clock::time_point now = Clock::now();
  if (!drawn_) at_start_ = done;
  if (drawn_ && done < total && now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  const double speed = seconds > 0 ? static_cast<double>(done - at_start_) / seconds : 0;
  const double part = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
  std::string line = fmt::format("{:3.0f}%  {} of {}  {}/s", part * 100, human_size(done),
                                 human_size(total), human_size(static_cast<std::uint64_t>(speed)));
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

void ProgressBar::clear() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
}

}  // namespace ckfs::cli
