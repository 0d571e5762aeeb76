#include "fetcher/patience.h"

#include <gtest/gtest.h>

namespace ckfs {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr FetchTime kStart{};

TEST(FirstBytes, LimitIsFourTimesWhatIsUsualWithinBounds) {
  const Patience patience;
  FirstBytes times;
  EXPECT_EQ(times.limit(patience), seconds(30));  // nothing is known
  for (int i = 0; i < 63; ++i) times.add(milliseconds(20));
  EXPECT_FALSE(times.p99());
  times.add(milliseconds(20));
  EXPECT_EQ(times.p99(), milliseconds(20));
  EXPECT_EQ(times.limit(patience), seconds(5));
  for (int i = 0; i < 256; ++i) times.add(milliseconds(i < 250 ? 20 : 2000));
  EXPECT_EQ(times.limit(patience), seconds(8));
  for (int i = 0; i < 256; ++i) times.add(seconds(20));
  EXPECT_EQ(times.limit(patience), seconds(30));
}

TEST(StallWatch, EndsWhatDoesNotBegin) {
  const Patience patience;
  StallWatch watch(kStart, seconds(5), patience);
  EXPECT_FALSE(watch.is_dead(kStart + milliseconds(4999), 0));
  EXPECT_TRUE(watch.is_dead(kStart + seconds(5), 0));
}

TEST(StallWatch, EndsWhatGoesOnTooSlowly) {
  const Patience patience;
  StallWatch watch(kStart, seconds(5), patience);
  EXPECT_FALSE(watch.is_dead(kStart + seconds(4), 100));
  // Fast enough for fifteen seconds, and then not.
  EXPECT_FALSE(watch.is_dead(kStart + seconds(19), 100 + 15 * 65536));
  EXPECT_FALSE(watch.is_dead(kStart + seconds(33), 100 + 15 * 65536));
  EXPECT_TRUE(watch.is_dead(kStart + seconds(34), 100 + 30 * 65536 - 1));
}

TEST(StallWatch, LetsASlowStreamLive) {
  const Patience patience;
  StallWatch watch(kStart, seconds(5), patience);
  for (int second = 1; second < 600; ++second) {
    EXPECT_FALSE(
        watch.is_dead(kStart + seconds(second), static_cast<std::uint64_t>(second) * 70'000))
        << second;
  }
}

TEST(StallWatch, KnowsHowLongNothingCame) {
  const Patience patience;
  StallWatch watch(kStart, seconds(5), patience);
  EXPECT_EQ(watch.idle(kStart + seconds(2)), seconds(2));
  EXPECT_FALSE(watch.is_dead(kStart + seconds(3), 10));
  EXPECT_FALSE(watch.is_dead(kStart + seconds(4), 10));
  EXPECT_EQ(watch.idle(kStart + seconds(5)), seconds(2));
}

TEST(Hedges, AreForFewRequestsOfAHostThatIsKnown) {
  const Patience patience;
  FirstBytes times;
  Hedges hedges;
  for (int i = 0; i < 1000; ++i) hedges.sent();
  EXPECT_FALSE(hedges.take(seconds(4), times, patience));
  for (int i = 0; i < 256; ++i) times.add(milliseconds(200));
  EXPECT_FALSE(hedges.take(milliseconds(799), times, patience));
  int taken = 0;
  while (taken < 1000 && hedges.take(milliseconds(800), times, patience)) ++taken;
  EXPECT_EQ(taken, 20);
}

TEST(Backoff, GrowsWithJitterUpToItsCap) {
  const Patience patience;
  Backoff backoff(1);
  FetchDuration longest{};
  for (int i = 0; i < 1000; ++i) {
    EXPECT_LE(backoff.wait(0, {}, patience), milliseconds(100));
    EXPECT_LE(backoff.wait(3, {}, patience), milliseconds(800));
    const auto wait = backoff.wait(60, {}, patience);
    EXPECT_LE(wait, seconds(20));
    longest = std::max(longest, wait);
  }
  EXPECT_GT(longest, seconds(15));
}

TEST(Backoff, WaitsAsLongAsTheServerAsks) {
  const Patience patience;
  Backoff backoff(1);
  for (int i = 0; i < 100; ++i) {
    const auto wait = backoff.wait(0, 90, patience);
    EXPECT_GE(wait, seconds(90));
    EXPECT_LE(wait, seconds(91));
  }
}

TEST(RetryTokens, LetNotAllComeBackAtOnce) {
  RetryTokens tokens;
  int taken = 0;
  while (taken < 1000 && !tokens.take(kStart)) ++taken;
  EXPECT_EQ(taken, 64);
  // A second later some are there; what was told to wait finds one.
  const auto wait = tokens.take(kStart);
  ASSERT_TRUE(wait);
  EXPECT_FALSE(tokens.take(kStart + *wait));
  int later = 0;
  while (later < 1000 && !tokens.take(kStart + *wait + seconds(1))) ++later;
  EXPECT_GE(later, 7);
  EXPECT_LE(later, 8);
}

TEST(RetryTokens, AreNoHindranceWhereOneInAHundredFails) {
  RetryTokens tokens;
  for (int i = 0; i < 10'000; ++i) {
    if (i % 25 == 0) {
      EXPECT_FALSE(tokens.take(kStart)) << i;
    }
    tokens.succeeded();
  }
}

/// Requests of a megabyte against a server that gives `rate(window)` bytes a second.
template <typename Rate>
void run_window(Window& window, FetchTime& now, int requests, Rate rate) {
  for (int i = 0; i < requests; ++i) {
    now += std::chrono::duration_cast<FetchTime::duration>(
        std::chrono::duration<double>(1e6 / rate(window.size())));
    window.done(now, 1'000'000, true);
  }
}

TEST(Window, GrowsWhileMoreBringsMore) {
  Window window(8, 64);
  FetchTime now = kStart;
  EXPECT_EQ(window.size(), 8);
  run_window(window, now, 1000, [](std::size_t size) { return 50e6 * static_cast<double>(size); });
  EXPECT_EQ(window.size(), 64);
}

TEST(Window, StaysWhereMoreBringsNothing) {
  Window window(8, 64);
  FetchTime now = kStart;
  run_window(window, now, 200, [](std::size_t size) {
    return 50e6 * static_cast<double>(std::min<std::size_t>(size, 10));
  });
  EXPECT_LE(window.size(), 27);
  EXPECT_GE(window.size(), 10);
}

/// A request that the server has too much to do for.
void refuse(Window& window, FetchTime now) {
  window.done(now, 0, true);
  window.pushed_back(now);
}

TEST(Window, IsHalvedOnceASecondWhenTheServerHasTooMuchToDo) {
  Window window(32, 64);
  FetchTime now = kStart + seconds(1);
  for (int i = 0; i < 32; ++i) refuse(window, now);
  EXPECT_EQ(window.size(), 16);
  refuse(window, now + seconds(1));
  EXPECT_EQ(window.size(), 8);
  for (int i = 2; i < 20; ++i) refuse(window, now + seconds(i));
  EXPECT_EQ(window.size(), 1);
  now += seconds(20);
  run_window(window, now, 1000, [](std::size_t size) { return 50e6 * static_cast<double>(size); });
  EXPECT_EQ(window.size(), 64);
}

TEST(Window, StaysWhereOneInAHundredIsRefused) {
  Window window(8, 64);
  FetchTime now = kStart;
  for (int i = 0; i < 200; ++i) {
    run_window(window, now, 100, [](std::size_t size) { return 50e6 * static_cast<double>(size); });
    refuse(window, now);
  }
  EXPECT_EQ(window.size(), 64);
}

}  // namespace
}  // namespace ckfs
