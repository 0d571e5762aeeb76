// What it may cost to refuse a malformed file (docs/SECURITY.md).
#pragma once

#include <cstddef>
#include <ctime>
#include <gtest/gtest.h>

#include "base/units.h"
#include "support/heap_counters.h"
#include "support/sanitized.h"

namespace ckfs {

/// Expects, where it ends, that no more than 64 MiB beyond the input's bytes were held at once
/// since it began, and that less than a second of processor time was used (by all threads; a
/// sanitizer's seconds are longer). The program has heap_meter.h in one of its files.
class CostLimit {
 public:
  explicit CostLimit(std::size_t input) : input_(input) {}
  CostLimit(const CostLimit&) = delete;
  CostLimit& operator=(const CostLimit&) = delete;
  ~CostLimit() {
    EXPECT_GT(heap_meter::now, 0U) << "nothing counts memory here";
    EXPECT_LE(memory_.most(), input_ + 64_MiB);
    EXPECT_LT(std::clock() - begin_, kSecond * CLOCKS_PER_SEC);
  }

 private:
  static constexpr std::clock_t kSecond = kSanitized ? 30 : 1;

  std::size_t input_;
  heap_meter::Span memory_;
  std::clock_t begin_ = std::clock();
};

}  // namespace ckfs
