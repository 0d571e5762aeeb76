// A stop by signal, for verbs that take minutes.
#pragma once

#include <atomic>
#include <optional>
#include <stop_token>
#include <thread>

#include "cli/cli.h"

namespace ckfs::cli {

/// Turns the first SIGINT or SIGTERM into a stop request. A second one ends the process, with the
/// exit code `second`. An ignored SIGINT stays ignored. The signals stay blocked when it is gone.
/// Where no thread can be started, a signal ends the process at once: what the verb writes must
/// survive that. Requires: make it before other threads, which inherit the mask.
class SignalWatch {
 public:
  explicit SignalWatch(Exit second = Exit::Failed);
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  std::stop_token token() const { return stop_.get_token(); }

 private:
  std::stop_source stop_;
  std::atomic<bool> ended_ = false;
  std::optional<std::thread> thread_;
};

}  // namespace ckfs::cli
