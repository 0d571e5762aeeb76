// The locks do what the standard's do; that clang refuses an unguarded access is seen where the
// tree is built by it (presets tsan, fuzz and tidy).
#include "base/mutex.h"

#include <gtest/gtest.h>
#include <thread>
#include <vector>

namespace ckfs {
namespace {

class Counter {
 public:
  void add() {
    const MutexLock lock(mutex_);
    ++count_;
    changed_.notify_all();
  }

  void add_in_two_steps() {
    MutexLock lock(mutex_);
    const int seen = count_;
    lock.unlock();
    lock.lock();
    count_ += count_ >= seen ? 1 : 0;
    changed_.notify_all();
  }

  int wait_for(int count) {
    MutexLock lock(mutex_);
    while (count_ < count) changed_.wait(lock);
    return count_;
  }

  bool reaches(int count, std::chrono::milliseconds within) {
    const auto end = std::chrono::steady_clock::now() + within;
    MutexLock lock(mutex_);
    while (count_ < count) {
      if (!changed_.wait_until(lock, end)) return count_ >= count;
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int count_ CKFS_GUARDED_BY(mutex_) = 0;
};

TEST(Mutex, IsHeldByOneThreadAtATime) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 5000;
  Counter counter;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&] {
        for (int k = 0; k < kRounds; ++k) {
          counter.add();
          counter.add_in_two_steps();
        }
      });
    }
  }
  EXPECT_EQ(counter.wait_for(0), 2 * kThreads * kRounds);
}

TEST(CondVar, WakesWhoWaitsForAChange) {
  Counter counter;
  std::jthread thread([&] {
    counter.add();
    counter.add();
  });
  EXPECT_EQ(counter.wait_for(2), 2);
}

TEST(CondVar, EndsAWaitAtItsTime) {
  Counter counter;
  EXPECT_FALSE(counter.reaches(1, std::chrono::milliseconds(1)));
  counter.add();
  EXPECT_TRUE(counter.reaches(1, std::chrono::milliseconds(1)));
}

class Pair {
 public:
  void step() {
    const WriterLock lock(mutex_);
    ++first_;
    ++second_;
  }
  bool equal() const {
    const ReaderLock lock(mutex_);
    return first_ == second_;
  }

 private:
  mutable SharedMutex mutex_;
  int first_ CKFS_GUARDED_BY(mutex_) = 0;
  int second_ CKFS_GUARDED_BY(mutex_) = 0;
};

TEST(SharedMutex, ShowsReadersWholeChangesOnly) {
  Pair pair;
  std::vector<std::jthread> threads;
  threads.emplace_back([&] {
    for (int i = 0; i < 5000; ++i) pair.step();
  });
  for (int reader = 0; reader < 2; ++reader) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) EXPECT_TRUE(pair.equal());
    });
  }
}

}  // namespace
}  // namespace ckfs
