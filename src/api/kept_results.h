// The results of ViewFile::read() that a program keeps. Each holds memory of the budget that
// readers need: with all of it kept, no read could end. So they are counted, and
// beyond a share of the budget a result is a copy on the heap.
//
// Safe for concurrent use.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/rounding.h"
#include "base/units.h"

namespace ckfs {

class KeptResults {
 public:
  /// A quarter of the budget is what Engine::read() allows its callers to keep.
  explicit KeptResults(std::uint64_t budget) : most_(budget / 4) {}

  /// What a result of `size` bytes counts: a short one may lie in a piece of 1 MiB.
  static std::uint64_t counted(std::uint64_t size) { return round_up<std::uint64_t>(size, 1_MiB); }

  /// Counts a result, if it fits.
  bool take(std::uint64_t counted) {
    if (now_.fetch_add(counted, std::memory_order_relaxed) + counted <= most_) return true;
    give(counted);
    return false;
  }
  void give(std::uint64_t counted) { now_.fetch_sub(counted, std::memory_order_relaxed); }

  std::uint64_t now() const { return now_.load(std::memory_order_relaxed); }
  std::uint64_t most() const { return most_; }

 private:
  const std::uint64_t most_;
  std::atomic<std::uint64_t> now_{0};
};

}  // namespace ckfs
