// What verbs share that take minutes: a stop by signal, and a line that shows how far they are.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <thread>

#include "cli/cli.h"

namespace ckfs::cli {

/// Turns the first SIGINT or SIGTERM into a stop request; a second one ends the process, with the
/// exit code `second`. An ignored SIGINT stays ignored. Requires: made before other threads, which
/// inherit the mask. Where no thread can be started a signal ends the process at once, which
/// whatever it writes must survive; else what it takes stays blocked when it is gone.
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

/// One line on stderr, drawn over and over; nothing where stderr is no terminal.
class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Bytes done and in total. By one thread at a time.
  void show(std::uint64_t done, std::uint64_t total);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  bool shown_;
  bool drawn_ = false;
  std::uint64_t at_start_ = 0;
  Clock::time_point begin_;
  Clock::time_point last_;
};

}  // namespace ckfs::cli
