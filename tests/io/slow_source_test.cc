// The times of a slow source, without waiting for them; and one source that waits.
#include "support/slow_source.h"

#include <gtest/gtest.h>
#include <vector>

#include "support/delayed_source.h"
#include "support/memory_source.h"

namespace ckfs {
namespace {

using std::chrono::milliseconds;

constexpr SlowSource::Clock::time_point kNow = SlowSource::Clock::time_point(std::chrono::hours(1));

double milliseconds_until(SlowSource::Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - kNow).count();
}

TEST(SlowSource, EachRequestIsDelayedForItself) {
  SlowSource source;
  source.set({.delay = milliseconds(5)});
  for (std::uint64_t k = 0; k < 64; ++k) {
    EXPECT_DOUBLE_EQ(milliseconds_until(source.answered(kNow, 0, k, 1'000'000)), 5);
  }
}

TEST(SlowSource, OnlySoManyAreInFlight) {
  SlowSource source;
  source.set({.delay = milliseconds(5), .in_flight = 2});
  std::vector<double> ends;
  for (int k = 0; k < 5; ++k) ends.push_back(milliseconds_until(source.answered(kNow, 0, 0, 1)));
  EXPECT_EQ(ends, (std::vector<double>{5, 5, 10, 10, 15}));
}

TEST(SlowSource, ACloudDiskGivesTwoGigabytesASecondToTenAtOnce) {
  SlowSource source;
  source.set(SlowSource::Speed::cloud_disk());
  EXPECT_NEAR(milliseconds_until(source.answered(kNow, 0, 0, 2'000'000)), 11, 0.1);
  source.set(SlowSource::Speed::cloud_disk());
  SlowSource::Clock::time_point end = kNow;
  for (int k = 0; k < 100; ++k) end = source.answered(kNow, 0, 0, 2'000'000);
  EXPECT_NEAR(milliseconds_until(end), 110, 10);
}

TEST(SlowSource, AStreamIsDelayedWhereItJumps) {
  SlowSource source;
  source.set({.jump = milliseconds(20), .request_bandwidth = 1'000'000});
  EXPECT_DOUBLE_EQ(milliseconds_until(source.answered(kNow, 1, 0, 1'000)), 1);
  EXPECT_DOUBLE_EQ(milliseconds_until(source.answered(kNow, 1, 1'000, 1'000)), 1);
  EXPECT_DOUBLE_EQ(milliseconds_until(source.answered(kNow, 1, 0, 1'000)), 21);
  EXPECT_DOUBLE_EQ(milliseconds_until(source.answered(kNow, 2, 2'000, 1'000)), 21);
  EXPECT_DOUBLE_EQ(milliseconds_until(source.answered(kNow, 1, 1'000, 1'000)), 1);
}

TEST(DelayedSource, GivesTheBytesOfAnotherLater) {
  MemorySource memory;
  const FileId file = memory.add("a.bin", std::vector<std::byte>(100, std::byte{3}));
  DelayedSource delayed(memory, {.delay = milliseconds(5)});
  std::vector<std::byte> one(10), two(10);
  const ReadRequest batch[] = {{file, 0, one}, {file, 50, two}};
  const auto begin = SlowSource::Clock::now();
  ASSERT_TRUE(delayed.read(batch));
  EXPECT_GE(SlowSource::Clock::now() - begin, milliseconds(5));
  EXPECT_EQ(two, std::vector<std::byte>(10, std::byte{3}));
  EXPECT_EQ(delayed.requests(), 2u);
}

}  // namespace
}  // namespace ckfs
