// A thread of its own waits for SIGINT and SIGTERM: a signal handler may do nothing that a verb
// needs.
#include "cli/running.h"

#include <csignal>
#include <pthread.h>
#include <unistd.h>

#include "base/start_thread.h"

namespace ckfs::cli {

namespace {

/// Without SIGINT where it is ignored (a shell's background job): while blocked it would queue up.
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

}  // namespace ckfs::cli
