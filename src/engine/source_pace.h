// How far ahead of its readers a source wants to be asked: as many bytes as it delivers in the time
// that one answer takes. Measured, not configured: a page cache wants nothing, a cloud disk ten
// requests of 2 MB, a server across a network 64 MiB.
//
// Reads that took long double the distance; where everything that was asked for has come in time
// for a while, it shrinks again. Safe for concurrent use by several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <sys/resource.h>

#include "base/units.h"

namespace ckfs {

class SourcePace {
 public:
  using Duration = std::chrono::nanoseconds;

  /// How long this thread waits for a read that begins now. What a busy machine adds is no wait for
  /// the source: a page cache would look slow, be given a thread for each piece, and keep the
  /// machine busy by that. So a thread that was only preempted has not waited, nor has one for the
  /// fresh pages that it read into.
  class Watch {
   public:
    Duration waited() const {
      const rusage now = usage();
      if (now.ru_nvcsw == before_.ru_nvcsw) return Duration(0);  // never blocked
      const Duration all = std::chrono::steady_clock::now() - begin_;
      return std::max(Duration(0), all - (now.ru_minflt - before_.ru_minflt) * kFreshPage);
    }

   private:
    static rusage usage() {
      rusage usage{};
      ::getrusage(RUSAGE_THREAD, &usage);
      return usage;
    }

    const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    const rusage before_ = usage();
  };

  /// A read of `bytes` bytes was waited for during `time`.
  void took(std::uint64_t bytes, Duration time) {
    // Slower than any page cache.
    const Duration patience = kPatience + Duration(bytes);  // 1 GB/s
    const int slow = slow_.load(std::memory_order_relaxed);
    slow_.store(time > patience ? std::min(slow + 1, 8) : slow / 2, std::memory_order_relaxed);
    if (time > patience) {
      calm_.store(0, std::memory_order_relaxed);
      const std::uint64_t now = ahead_.load(std::memory_order_relaxed);
      ahead_.store(std::clamp(2 * now, kLeast, kMost), std::memory_order_relaxed);
      return;
    }
    const std::uint64_t now = ahead_.load(std::memory_order_relaxed);
    if (calm_.fetch_add(bytes, std::memory_order_relaxed) + bytes > 4 * std::max(now, kLeast)) {
      calm_.store(0, std::memory_order_relaxed);
      ahead_.store(now > kLeast ? now / 2 : 0, std::memory_order_relaxed);
    }
  }

  /// Bytes; 0: it answers at once.
  std::uint64_t ahead() const { return ahead_.load(std::memory_order_relaxed); }

  /// Hardly any read has come soon of late: the source is far away, and no exception looks so.
  /// False of a disk whose hints come early enough.
  bool far() const { return slow_.load(std::memory_order_relaxed) >= kFar; }

  static constexpr std::uint64_t kLeast = 4_MiB;
  static constexpr std::uint64_t kMost = 128_MiB;

 private:
  static constexpr Duration kPatience = std::chrono::milliseconds(1);

  /// What touching a page for the first time costs where the host of a virtual machine has to find
  /// it (docs/PERFORMANCE.md).
  static constexpr Duration kFreshPage = std::chrono::microseconds(10);

  static constexpr int kFar = 3;

  std::atomic<int> slow_{0};  // reads in a row, about
  std::atomic<std::uint64_t> ahead_{0};
  std::atomic<std::uint64_t> calm_{0};  // bytes since the last slow read
};

}  // namespace ckfs
