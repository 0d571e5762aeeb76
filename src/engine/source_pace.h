// How far ahead of its readers a source wants to be asked: as many bytes as it delivers in the time
// that one answer takes. Measured, not configured: a page cache wants nothing, a cloud disk ten
// requests of 2 MB, a server across a network 64 MiB.
//
// Slow reads double the distance; when all bytes have come in time for a while, it shrinks again.
// Safe for concurrent use by several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <sys/resource.h>

#include "base/byte_source.h"
#include "base/units.h"

namespace ckfs {

class SourcePace {
 public:
  using Duration = std::chrono::nanoseconds;
  /// What any read may take, beside its bytes.
  static constexpr Duration kPatience = std::chrono::milliseconds(1);

  /// How long this thread waits for a read that begins now. Time in which it computes (fresh pages
  /// are expensive) does not count, and neither does a read that never blocked and only let others
  /// run. Otherwise a page cache on a busy machine would look slow, get a thread for each piece,
  /// and keep the machine busy. In a read that did block, the time in which others ran counts,
  /// because nothing tells it apart. Up to kPatience all of the time counts: took() makes no
  /// difference there, and a small read is not worth another system call.
  class Watch {
   public:
    Duration waited() const {
      const Duration all = std::chrono::steady_clock::now() - begin_;
      if (all <= kPatience) return all;
      const rusage now = usage();
      if (now.ru_nvcsw == before_.ru_nvcsw) return Duration(0);  // never blocked
      return std::max(Duration(0), all - (computed(now) - computed(before_)));
    }

   private:
    static Duration computed(const rusage& usage) {
      return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
             std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    }
    static rusage usage() {
      rusage usage{};
      ::getrusage(RUSAGE_THREAD, &usage);
      return usage;
    }

    const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    const rusage before_ = usage();
  };

  /// Notes a read of `bytes` bytes, of `file` and perhaps others, that took a wait of `time`.
  void took(std::uint64_t bytes, FileId file, Duration time) {
    // Slower than any page cache.
    const Duration patience = kPatience + Duration(bytes);  // 1 GB/s
    const int slow = slow_.load(std::memory_order_relaxed);
    slow_.store(time > patience ? std::min(slow + 1, 8) : slow / 2, std::memory_order_relaxed);
    if (time > patience) {
      calm_.store(0, std::memory_order_relaxed);
      late_.store(file, std::memory_order_relaxed);
      const std::uint64_t now = ahead_.load(std::memory_order_relaxed);
      ahead_.store(std::clamp(2 * now, kLeast, kMost), std::memory_order_relaxed);
      return;
    }
    const std::uint64_t now = ahead_.load(std::memory_order_relaxed);
    // Shrinks to zero only after a long time: reads may be fast because of the hints.
    const std::uint64_t enough = 4 * (now > kLeast ? now : kMost);
    if (calm_.fetch_add(bytes, std::memory_order_relaxed) + bytes > enough) {
      calm_.store(0, std::memory_order_relaxed);
      ahead_.store(now > kLeast ? now / 2 : 0, std::memory_order_relaxed);
    }
  }

  /// Bytes; 0: it answers at once.
  std::uint64_t ahead() const { return ahead_.load(std::memory_order_relaxed); }

  /// Whether hardly any recent read came soon: then the source is far away, and it is not an
  /// exception. False for a disk whose hints come early enough.
  bool far() const { return slow_.load(std::memory_order_relaxed) >= kFar; }

  /// The file that was waited for last.
  FileId late() const { return late_.load(std::memory_order_relaxed); }

  static constexpr std::uint64_t kLeast = 4_MiB;
  static constexpr std::uint64_t kMost = 128_MiB;

 private:
  static constexpr int kFar = 3;

  std::atomic<int> slow_{0};  // reads in a row, about
  std::atomic<std::uint64_t> ahead_{0};
  std::atomic<FileId> late_{0};
  std::atomic<std::uint64_t> calm_{0};  // bytes since the last slow read
};

}  // namespace ckfs
