#include "base/log_limit.h"

#include <atomic>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

namespace ckfs {
namespace {

using namespace std::chrono_literals;

class LogLimitTest : public testing::Test {
 protected:
  LogLimit::Clock::time_point now_ = LogLimit::Clock::time_point() + 1h;
  LogLimit limit_{[this] { return now_; }};
};

TEST_F(LogLimitTest, AdmitsTheFirstLineOfEachCause) {
  EXPECT_EQ(limit_.admit("a"), 0U);
  EXPECT_EQ(limit_.admit("b"), 0U);
  EXPECT_EQ(limit_.admit("a"), std::nullopt);
}

TEST_F(LogLimitTest, AdmitsOneLineAMinuteWithACountForAsLongAsItLasts) {
  EXPECT_EQ(limit_.admit("a"), 0U);
  for (int minute = 0; minute < 3000; ++minute) {  // two days, and no end
    for (int i = 0; i < 10; ++i) EXPECT_EQ(limit_.admit("a"), std::nullopt);
    now_ += LogLimit::kInterval;
    EXPECT_EQ(limit_.admit("a"), 10U);
  }
}

TEST_F(LogLimitTest, HoldsABoundedNumberOfCauses) {
  std::size_t admitted = 0;
  for (int i = 0; i < 100'000; ++i) {
    if (limit_.admit("cause " + std::to_string(i))) ++admitted;
  }
  // Those without room of their own share one line.
  EXPECT_EQ(admitted, LogLimit::kMostCauses + 1);
  EXPECT_EQ(limit_.admit("cause 0"), std::nullopt);
  now_ += LogLimit::kInterval;
  EXPECT_EQ(limit_.admit("another"), 0U);  // room again
  EXPECT_EQ(limit_.admit("cause 0"), 1U);
}

TEST_F(LogLimitTest, LosesNoCountWhereCausesMakeRoom) {
  for (std::size_t i = 0; i < LogLimit::kMostCauses; ++i) {
    EXPECT_EQ(limit_.admit("cause " + std::to_string(i)), 0U);
    EXPECT_EQ(limit_.admit("cause " + std::to_string(i)), std::nullopt);
  }
  now_ += LogLimit::kInterval;
  EXPECT_EQ(limit_.admit("another"), 0U);  // all of them made room
  for (std::size_t i = 1; i < LogLimit::kMostCauses; ++i) {
    EXPECT_EQ(limit_.admit("more " + std::to_string(i)), 0U);
  }
  EXPECT_EQ(limit_.admit("one that shares"), LogLimit::kMostCauses);
}

TEST_F(LogLimitTest, CutsLongCauses) {
  const std::string start(LogLimit::kLongestCause, 'x');
  EXPECT_EQ(limit_.admit(start + "a"), 0U);
  EXPECT_EQ(limit_.admit(start + "b"), std::nullopt);
}

TEST(LogLimit, AdmitsOneOfManyThreads) {
  LogLimit limit;
  std::atomic<int> admitted = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] {
        for (int k = 0; k < 1000; ++k) admitted += limit.admit("a") ? 1 : 0;
      });
    }
  }
  EXPECT_EQ(admitted, 1);
}

TEST(LogLimit, CountsInWords) {
  EXPECT_EQ(suppressed_note(0), "");
  EXPECT_EQ(suppressed_note(12), " (12 more since the last line)");
}

}  // namespace
}  // namespace ckfs
