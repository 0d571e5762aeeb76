#include "base/parallel.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <gtest/gtest.h>
#include <latch>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace ckfs {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kTasks = 1000;

std::optional<std::thread> refuse(const std::function<void()>& /*work*/) {
  return std::nullopt;
}

/// How many are inside at once.
class Meter {
 public:
  void enter() {
    const std::size_t inside = ++now_;
    std::size_t most = most_;
    while (inside > most && !most_.compare_exchange_weak(most, inside)) {
    }
  }
  void leave() { --now_; }
  std::size_t most() const { return most_; }

 private:
  std::atomic<std::size_t> now_ = 0, most_ = 0;
};

TEST(Parallel, RunsEveryTaskOnce) {
  std::vector<std::atomic<int>> runs(kTasks);
  ASSERT_TRUE(run_parallel(kTasks, [&](std::size_t i) -> Result<void> {
    ++runs[i];
    return {};
  }));
  for (const auto& count : runs) EXPECT_EQ(count, 1);
  EXPECT_TRUE(
      run_parallel(0, [](std::size_t) -> Result<void> { return fail(ErrorCode::Io, "no task"); }));
}

TEST(Parallel, TakesInOrderInTheCallingThread) {
  std::vector<std::atomic<bool>> made(kTasks);
  std::size_t next = 0;
  const auto caller = std::this_thread::get_id();
  ASSERT_TRUE(run_in_order(
      kTasks,
      [&](std::size_t i) -> Result<void> {
        made[i] = true;
        return {};
      },
      [&](std::size_t i) -> Result<void> {
        EXPECT_EQ(i, next++);
        EXPECT_TRUE(made[i]);
        EXPECT_EQ(std::this_thread::get_id(), caller);
        return {};
      }));
  EXPECT_EQ(next, kTasks);
}

TEST(Parallel, FewTasksAreMadeAndNotTaken) {
  std::atomic<std::size_t> made = 0, taken = 0, most = 0;
  ASSERT_TRUE(run_in_order(
      kTasks,
      [&](std::size_t) -> Result<void> {
        const std::size_t waiting = ++made - taken;
        if (waiting > most) most = waiting;
        return {};
      },
      [&](std::size_t) -> Result<void> {
        ++taken;
        return {};
      },
      {.few = 3, .most = 3}));
  EXPECT_LE(most, 2 * 3 + 1U);  // and the one that is being taken
}

TEST(Parallel, TheFailureOfTheFirstTaskIsTheResult) {
  for (int round = 0; round < 50; ++round) {
    const auto task = [&](std::size_t i) -> Result<void> {
      if (i == 7) std::this_thread::yield();
      if (i == 7 || i > 20) return fail(ErrorCode::Corrupt, "task {}", i);
      return {};
    };
    EXPECT_EQ(run_parallel(kTasks, task).error().message(), "task 7");
    const auto fine = [](std::size_t) -> Result<void> { return {}; };
    EXPECT_EQ(run_in_order(kTasks, task, fine).error().message(), "task 7");
    EXPECT_EQ(run_in_order(kTasks, fine, task).error().message(), "task 7");
    const auto early = [](std::size_t i) -> Result<void> {
      if (i == 3) return fail(ErrorCode::Corrupt, "taking 3");
      return {};
    };
    EXPECT_EQ(run_in_order(kTasks, task, early).error().message(), "taking 3");
  }
}

TEST(Parallel, WithoutThreadsTheCallerDoesAll) {
  const Parallel alone{.start = refuse};
  std::size_t made = 0, taken = 0;
  const auto make = [&](std::size_t) -> Result<void> {
    ++made;
    return {};
  };
  ASSERT_TRUE(run_parallel(kTasks, make, alone));
  EXPECT_EQ(made, kTasks);
  ASSERT_TRUE(run_in_order(
      kTasks, make,
      [&](std::size_t) -> Result<void> {
        ++taken;
        return {};
      },
      alone));
  EXPECT_EQ(made, 2 * kTasks);
  EXPECT_EQ(taken, kTasks);
}

TEST(Parallel, NoMemoryIsAnError) {
  const auto task = [](std::size_t i) -> Result<void> {
    if (i >= 5) throw std::bad_alloc();
    return {};
  };
  EXPECT_EQ(run_parallel(kTasks, task).error().code(), ErrorCode::OutOfMemory);
  EXPECT_EQ(run_in_order(kTasks, task, task).error().code(), ErrorCode::OutOfMemory);
}

TEST(Parallel, AddsThreadsWhereTasksWait) {
  Meter meter;
  ASSERT_TRUE(run_parallel(kTasks, [&](std::size_t) -> Result<void> {
    meter.enter();
    std::this_thread::sleep_for(milliseconds(5));  // the delay of a far source
    meter.leave();
    return {};
  }));
  EXPECT_EQ(meter.most(), Parallel{}.most);
}

TEST(Parallel, AddsThreadsWhereTasksWaitThoughTheProgramComputesBesides) {
  std::atomic<bool> ended = false;
  std::vector<std::thread> busy(std::thread::hardware_concurrency());
  for (std::thread& each : busy) {
    each = std::thread([&ended] {
      while (!ended) {
      }
    });
  }
  Meter meter;
  EXPECT_TRUE(run_parallel(kTasks, [&](std::size_t) -> Result<void> {
    meter.enter();
    std::this_thread::sleep_for(milliseconds(5));  // the delay of a far source
    meter.leave();
    return {};
  }));
  ended = true;
  for (std::thread& each : busy) each.join();
  EXPECT_EQ(meter.most(), Parallel{}.most);
}

TEST(Parallel, NeverHasMoreThreadsThanItMay) {
  Meter meter;
  ASSERT_TRUE(run_parallel(100,
                           [&](std::size_t) -> Result<void> {
                             meter.enter();
                             // A delay, so that it would want more.
                             std::this_thread::sleep_for(milliseconds(2));
                             meter.leave();
                             return {};
                           },
                           {.few = 2, .most = 5}));
  EXPECT_EQ(meter.most(), 5U);
}

TEST(Parallel, ThreadsThatHaveNotBegunAreForTheTasksThatAreLeft) {
  std::latch begin(1);
  std::size_t started = 0;  // by the calling thread alone: the others have not begun
  const Parallel late{.start = [&](std::function<void()> work) {
    ++started;
    return std::optional(std::thread([&begin, work = std::move(work)] {
      begin.wait();
      work();
    }));
  }};
  ASSERT_TRUE(run_parallel(
      10,
      [&](std::size_t i) -> Result<void> {
        std::this_thread::sleep_for(milliseconds(2));  // a delay, so that it would want more
        if (i == 9) begin.count_down();
        return {};
      },
      late));
  EXPECT_GE(started, 3U);  // the few
  EXPECT_LE(started, 6U);  // one more for each of three tasks; then seven threads have six left
}

TEST(Parallel, AThreadThatThrowsWhereItIsStartedIsDoneWithout) {
  for (const std::size_t throws : {1, 3, 6}) {
    std::atomic<std::size_t> starts = 0;
    std::atomic<std::size_t> made = 0;
    const Parallel how{.start = [&](std::function<void()> work) {
      if (++starts == throws) throw std::bad_alloc();
      return std::optional(std::thread(std::move(work)));
    }};
    ASSERT_TRUE(run_parallel(
        100,
        [&](std::size_t) -> Result<void> {
          std::this_thread::sleep_for(milliseconds(2));  // a delay: it would want more
          ++made;
          return {};
        },
        how));
    EXPECT_EQ(made, 100U);
    EXPECT_LE(starts, throws);  // after it none is asked for
  }
}

TEST(Parallel, ThreadsThatComputeGetNoCompany) {
  const auto waited = [](int cpu, int wall, std::size_t threads, std::size_t cpus) {
    return mostly_waited(milliseconds(cpu), milliseconds(wall), threads, cpus);
  };
  EXPECT_FALSE(waited(200, 100, 4, 2));   // both CPUs are busy
  EXPECT_FALSE(waited(400, 100, 4, 64));  // each of the four has a CPU, and uses it
  EXPECT_FALSE(waited(60, 100, 1, 8));
  EXPECT_TRUE(waited(10, 100, 4, 2));
  EXPECT_TRUE(waited(100, 100, 64, 64));
}

}  // namespace
}  // namespace ckfs
