#include "base/reads_under_way.h"

#include <atomic>
#include <gtest/gtest.h>
#include <thread>

#include "support/failing_heap.h"

namespace ckfs {
namespace {

using std::chrono::milliseconds;

TEST(ReadsUnderWay, StopsThoseWhoseReadersAreGone) {
  ReadsUnderWay reads([](pid_t thread, bool direct) { return thread == 7 && !direct; },
                      milliseconds(1));
  const ReadsUnderWay::Read lives(&reads, 6, false);
  const ReadsUnderWay::Read gone(&reads, 7, false);
  const ReadsUnderWay::Read direct(&reads, 7, true);
  while (!gone.token().stop_requested()) std::this_thread::yield();
  const ReadsUnderWay::Read later(&reads, 7, false);
  while (!later.token().stop_requested()) std::this_thread::yield();
  EXPECT_FALSE(lives.token().stop_requested());
  EXPECT_FALSE(direct.token().stop_requested());
}

TEST(ReadsUnderWay, LooksAtNoneThatAreAnsweredSoon) {
  std::atomic<int> looks = 0;
  {
    ReadsUnderWay reads(
        [&](pid_t, bool) {
          ++looks;
          return true;
        },
        std::chrono::hours(1));
    for (int i = 0; i < 1000; ++i) {
      const ReadsUnderWay::Read read(&reads, 7, false);
      EXPECT_FALSE(read.token().stop_requested());
    }
  }
  EXPECT_EQ(looks, 0);
}

TEST(ReadsUnderWay, StopsAllAndThoseThatComeLater) {
  ReadsUnderWay reads([](pid_t, bool) { return false; });
  const ReadsUnderWay::Read first(&reads, 1, false), second(&reads, 2, false);
  failing_heap::left = 0;  // it takes no memory
  reads.stop_all();
  failing_heap::left = -1;
  EXPECT_TRUE(first.token().stop_requested());
  EXPECT_TRUE(second.token().stop_requested());
  EXPECT_TRUE(ReadsUnderWay::Read(&reads, 2, false).token().stop_requested());
  EXPECT_FALSE(ReadsUnderWay::Read(nullptr, 2, false).token().stop_requested());
}

}  // namespace
}  // namespace ckfs
