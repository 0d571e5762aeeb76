// What counts as waiting for a source, and what is made of it.
#include "engine/source_pace.h"

#include <algorithm>
#include <chrono>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <thread>
#include <vector>

#include "base/units.h"

namespace ckfs {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

void compute_for(steady_clock::duration time) {
  const auto end = steady_clock::now() + time;
  while (steady_clock::now() < end) {
  }
}

TEST(SourcePace, WhoSleepsWaits) {
  const SourcePace::Watch watch;
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_GE(watch.waited(), milliseconds(15));
}

TEST(SourcePace, WhoIsKeptFromItsCpuDoesNotWait) {
  // Three times as many threads as CPUs, each for several time slices of the scheduler. Where
  // memory is mapped beside them they may block for it (a new thread's stack, a sanitizer's
  // shadow): such threads tell nothing, so there are rounds until one was kept from its CPU and did
  // not block.
  const std::size_t count = 3 * std::max<std::size_t>(1, std::thread::hardware_concurrency());
  int kept = 0;
  for (int round = 0; round < 50 && kept == 0; ++round) {
    struct Seen {
      long blocked;  // times
      long kept;
      SourcePace::Duration waited;
    };
    std::vector<Seen> seen(count);
    std::vector<std::thread> threads;
    for (Seen& each : seen) {
      threads.emplace_back([&each] {
        rusage before{};
        rusage after{};
        ::getrusage(RUSAGE_THREAD, &before);
        const SourcePace::Watch watch;
        compute_for(milliseconds(30));
        const SourcePace::Duration waited = watch.waited();
        ::getrusage(RUSAGE_THREAD, &after);
        each = {.blocked = after.ru_nvcsw - before.ru_nvcsw,
                .kept = after.ru_nivcsw - before.ru_nivcsw,
                .waited = waited};
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Seen& each : seen) {
      if (each.blocked > 0) continue;
      EXPECT_EQ(each.waited, SourcePace::Duration(0));
      if (each.kept > 0) ++kept;
    }
  }
  EXPECT_GT(kept, 0);
}

TEST(SourcePace, ThreeSlowReadsInARowAreFarAndTheDistanceDoubles) {
  SourcePace pace;
  std::uint64_t expected = SourcePace::kLeast;
  for (int k = 0; k < 8; ++k) {
    EXPECT_EQ(pace.far(), k >= 3);
    pace.took(1_MiB, 7, milliseconds(50));
    EXPECT_EQ(pace.ahead(), expected);
    EXPECT_EQ(pace.late(), 7U);
    expected = std::min(2 * expected, SourcePace::kMost);
  }
  // 1 GB/s and a millisecond.
  pace.took(64_MiB, 8, milliseconds(60));
  EXPECT_EQ(pace.ahead(), SourcePace::kMost);
  EXPECT_EQ(pace.late(), 7U);
}

TEST(SourcePace, WhatComesInTimeBringsItBackToNothing) {
  SourcePace pace;
  for (int k = 0; k < 8; ++k) pace.took(1_MiB, 0, milliseconds(50));
  std::uint64_t bytes = 0;
  std::uint64_t before = pace.ahead();
  while (pace.ahead() > 0) {
    pace.took(1_MiB, 0, SourcePace::Duration(0));
    bytes += 1_MiB;
    if (pace.ahead() != before) {
      EXPECT_EQ(pace.ahead(), before > SourcePace::kLeast ? before / 2 : 0);
      before = pace.ahead();
    }
    ASSERT_LE(bytes, 12 * SourcePace::kMost + 16_MiB);
  }
  EXPECT_FALSE(pace.far());
}

}  // namespace
}  // namespace ckfs
