// One file, asked in order by any number of threads: the file is a real one, its source is played
// by the test.
#include "io/ordered_file.h"

#include <array>
#include <atomic>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <future>
#include <gtest/gtest.h>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "io/page_cache.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kFileBytes = 24_MiB;

class OrderedFileTest : public testing::Test {
 protected:
  OrderedFileTest() {
    const auto path = directory_.write("a.bin", "");
    std::filesystem::resize_file(path, kFileBytes);
    for (UniqueFd& fd : fds_) fd = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  }

  struct Event {
    unsigned descriptor;
    std::uint64_t offset;
    std::uint64_t size;
    bool operator==(const Event&) const = default;
  };

  Result<void> read(const std::vector<FileAccess>& accesses, std::chrono::microseconds delay = {}) {
    return file_.read(
        accesses, 1_MiB, system_,
        {[&](unsigned descriptor) -> Result<int> { return fds_[descriptor].get(); },
         [&, delay](unsigned descriptor, std::span<const FileAccess> asked) -> Result<void> {
           most_at_once_ = std::max(most_at_once_.load(), ++at_once_);
           {
             const std::lock_guard lock(mutex_);
             for (const FileAccess& each : asked) {
               events_.push_back({descriptor, each.offset, each.size});
               if (each.range().contains(broken_)) {
                 --at_once_;
                 return fail(ErrorCode::Io, "a.bin: broken");
               }
             }
           }
           if (asked_) asked_();
           clock_ += delay.count();  // the source's, once for all that is asked at once
           --at_once_;
           return {};
         },
         [&](std::uint64_t bytes) { passed_ += bytes; }});
  }
  std::vector<Result<void>> wait_behind_one(const std::vector<FileAccess>& accesses);
  void settle_for_order() {
    system_.pace.began_in_order({});
    system_.pace.ended_in_order(4_MiB, Pace::Time(std::chrono::seconds(1)));
    for (int k = 0; k < 2; ++k) {
      system_.pace.compared(std::chrono::seconds(1), std::chrono::seconds(1));
    }
    EXPECT_FALSE(system_.pace.wants_comparison());
  }
  Result<void> read_one(std::uint64_t offset, std::uint64_t size) {
    return read({{offset, size, {}}});
  }

  const TemporaryDirectory directory_{std::filesystem::current_path()};
  std::array<UniqueFd, 3> fds_;
  FileSystem system_{.traits = {.stable_inodes = false, .remote = true}};
  std::atomic<std::int64_t> clock_ = 0;  // microseconds
  OrderedFile file_{
      [this] { return OrderedFile::Clock::time_point(std::chrono::microseconds(clock_.load())); }};
  std::mutex mutex_;
  std::vector<Event> events_;  // guarded by mutex_
  ByteRange broken_{kFileBytes, kFileBytes + 1};
  std::function<void()> asked_;  // called by each access
  std::atomic<int> at_once_ = 0, most_at_once_ = 0;
  std::atomic<std::uint64_t> passed_ = 0;  // bytes read on the way
};

TEST_F(OrderedFileTest, OneThreadAtATimeAsksTheSource) {
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t k = 0; k < 50; ++k) {
        EXPECT_TRUE(read_one((t * 50 + k) * 1000 % (kFileBytes - 1000), 1000));
        EXPECT_TRUE(read({{t * 1_MiB, 1_MiB, {}}, {(t + 1) * 1_MiB, 1_MiB, {}}}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::uint64_t asked = 0;
  for (const Event& event : events_) asked += event.size;
  EXPECT_EQ(asked, 8u * 50 * (1000 + 2_MiB));
  EXPECT_EQ(most_at_once_.load(), 1);
}

TEST_F(OrderedFileTest, AReaderReadsOnAndSmallRequestsElsewhereDoNotMoveIt) {
  EXPECT_TRUE(read_one(0, 100));
  events_.clear();
  for (std::uint64_t k = 0; k < 4; ++k) {
    EXPECT_TRUE(read_one(100 + k * 1_MiB, 1_MiB));
    EXPECT_TRUE(read_one(kFileBytes - 4096, 4096));
  }
  for (std::size_t i = 0; i < events_.size(); ++i) {
    EXPECT_EQ(events_[i].descriptor == FileOrder::kJumps, events_[i].size < 1_MiB) << i;
  }
}

TEST_F(OrderedFileTest, WhatLiesBeforeAScaleIsInTheCacheThen) {
  for (std::uint64_t k = 0; k < 5; ++k) EXPECT_TRUE(read_one(k * 1_MiB, 1_MiB));
  system_.keeps_pages = FileSystem::Answer::Yes;  // the source of this test reads nothing
  EXPECT_TRUE(read_one(14_MiB, 4096));
  EXPECT_NE(events_.back().descriptor, FileOrder::kJumps);
  EXPECT_EQ(page_cache::cached_pages(fds_[0].get(), {5_MiB, 14_MiB}), 9_MiB / 4096);
  EXPECT_EQ(passed_, 9_MiB);
  EXPECT_TRUE(read_one(6_MiB, 1_MiB));
  EXPECT_NE(events_.back().descriptor, FileOrder::kJumps);
}

TEST_F(OrderedFileTest, TheHeadOfAFileThatWasOpenedAnewIsReadAgain) {
  system_.keeps_pages = FileSystem::Answer::Yes;  // the source of this test reads nothing
  EXPECT_TRUE(read_one(0, 10'000));
  system_.keeps_pages = FileSystem::Answer::Yes;
  EXPECT_TRUE(read_one(10'000, 200));
  EXPECT_EQ(passed_, 10'000);
  EXPECT_TRUE(read_one(10'200, 200));
  EXPECT_EQ(passed_, 10'000);
  page_cache::drop(fds_[0].get(), {0, kFileBytes}, kFileBytes);
  system_.keeps_pages = FileSystem::Answer::No;
  EXPECT_TRUE(read_one(10'400, 200));
  EXPECT_EQ(passed_, 10'000);
}

TEST_F(OrderedFileTest, WhatPassedLongAgoComesFromTheCacheAndMovesNoStream) {
  constexpr std::uint64_t kEnd = 80_MiB;
  std::filesystem::resize_file(directory_.path() / "a.bin", kEnd + 1_MiB);
  broken_ = {kEnd + 1_MiB, kEnd + 1_MiB + 1};
  for (std::uint64_t at = 0; at < kEnd; at += 1_MiB) EXPECT_TRUE(read_one(at, 1_MiB));
  std::vector<std::byte> bytes(1_MiB);
  ASSERT_EQ(::pread(fds_[1].get(), bytes.data(), bytes.size(), 0), 1_MiB);
  EXPECT_TRUE(read_one(5000, 200));
  EXPECT_NE(events_.back().descriptor, FileOrder::kJumps);
  EXPECT_TRUE(read_one(0, 1_MiB));
  EXPECT_TRUE(read_one(8_MiB, 200));
  EXPECT_EQ(events_.back().descriptor, FileOrder::kJumps);
  EXPECT_TRUE(read_one(kEnd, 1_MiB));
  EXPECT_EQ(events_.back(), (Event{events_.front().descriptor, kEnd, 1_MiB}));
}

TEST_F(OrderedFileTest, NothingIsReadOnTheWayWhereReadsLeaveNoPages) {
  system_.keeps_pages = FileSystem::Answer::Yes;
  for (std::uint64_t k = 0; k < 5; ++k) EXPECT_TRUE(read_one(k * 1_MiB, 1_MiB));
  EXPECT_EQ(system_.keeps_pages, FileSystem::Answer::No);
  EXPECT_TRUE(read_one(14_MiB, 4096));
  EXPECT_EQ(events_.back().descriptor, FileOrder::kJumps);
  EXPECT_EQ(page_cache::cached_pages(fds_[0].get(), {0, kFileBytes}), 0u);
}

TEST_F(OrderedFileTest, ASourceThatAnswersEachRequestForItselfIsFoundOut) {
  using namespace std::chrono_literals;
  for (std::uint64_t k = 0; k < 8 && !system_.pace.at_once(); ++k) {
    const std::uint64_t at = k * 3_MiB;
    EXPECT_TRUE(read({{at, 1_MiB, {}}, {at + 1_MiB, 1_MiB, {}}, {at + 2_MiB, 1_MiB, {}}}, 5000us));
  }
  EXPECT_TRUE(system_.pace.at_once());
}

TEST_F(OrderedFileTest, ASourceIsFoundOutWhileAnotherFileIsRead) {
  using namespace std::chrono_literals;
  OrderedFile other{[] { return OrderedFile::Clock::time_point(); }};
  std::promise<void> begun, may_end;
  std::thread reader([&] {
    const FileAccess whole{0, 1_MiB, {}};
    const auto done =
        other.read(std::span(&whole, 1), 1_MiB, system_,
                   {[&](unsigned descriptor) -> Result<int> { return fds_[descriptor].get(); },
                    [&](unsigned, std::span<const FileAccess>) -> Result<void> {
                      begun.set_value();
                      may_end.get_future().wait();
                      return {};
                    }});
    EXPECT_TRUE(done);
  });
  begun.get_future().wait();
  for (std::uint64_t k = 0; k < 8 && !system_.pace.at_once(); ++k) {
    const std::uint64_t at = k * 3_MiB;
    EXPECT_TRUE(read({{at, 1_MiB, {}}, {at + 1_MiB, 1_MiB, {}}, {at + 2_MiB, 1_MiB, {}}}, 5000us));
  }
  EXPECT_TRUE(system_.pace.at_once());
  may_end.set_value();
  reader.join();
}

TEST_F(OrderedFileTest, WhatIsLeftWhenItIsFoundOutIsAskedForAtOnce) {
  using namespace std::chrono_literals;
  std::vector<FileAccess> accesses;
  for (std::uint64_t k = 0; k < 24; ++k) accesses.push_back({k * 1_MiB, 1_MiB, {}});
  EXPECT_TRUE(read(accesses, 5000us));
  EXPECT_TRUE(system_.pace.at_once());
  EXPECT_EQ(events_.size(), accesses.size());
  EXPECT_LE(clock_.load(), 8 * 5000);  // one by one it would be 24
}

TEST_F(OrderedFileTest, WhatThePageCacheHasIsNotCompared) {
  using namespace std::chrono_literals;
  std::vector<std::byte> bytes(kFileBytes);
  ASSERT_EQ(::pread(fds_[0].get(), bytes.data(), kFileBytes, 0), static_cast<ssize_t>(kFileBytes));
  for (std::uint64_t k = 0; k < 8; ++k) {
    const std::uint64_t at = k * 3_MiB;
    EXPECT_TRUE(read({{at, 1_MiB, {}}, {at + 1_MiB, 1_MiB, {}}, {at + 2_MiB, 1_MiB, {}}}, 5000us));
  }
  EXPECT_FALSE(system_.pace.at_once());
  EXPECT_TRUE(system_.pace.wants_comparison());
  EXPECT_FALSE(system_.pace.begin_comparison());  // for a while: neighbours are joined then
}

/// While the first access is under way, others come; gives what each of them got.
std::vector<Result<void>> OrderedFileTest::wait_behind_one(
    const std::vector<FileAccess>& accesses) {
  std::vector<Result<void>> results(accesses.size());
  std::vector<std::thread> threads;
  bool first = true;
  asked_ = [&] {
    if (!std::exchange(first, false)) return;
    for (std::size_t i = 0; i < accesses.size(); ++i) {
      threads.emplace_back([&, i] { results[i] = read({accesses[i]}); });
      while (file_.waiting() < i + 1) std::this_thread::yield();
    }
  };
  EXPECT_TRUE(read_one(0, 1000));
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST_F(OrderedFileTest, WhatWaitsIsReadInOrderAndJoined) {
  settle_for_order();
  for (const auto& result : wait_behind_one({{401'000, 100'000, {}},
                                             {101'000, 300'000, {}},
                                             {1000, 100'000, {}},
                                             {501'000, 900'000, {}}})) {
    EXPECT_TRUE(result);
  }
  EXPECT_EQ(events_, (std::vector<Event>{{0, 0, 1000}, {0, 1000, 500'000}, {0, 501'000, 900'000}}));
}

TEST_F(OrderedFileTest, TheErrorOfOneIsNotThatOfAnother) {
  settle_for_order();
  broken_ = {200'000, 200'001};
  const auto results = wait_behind_one({{1000, 99'000, {}}, {100'000, 200'000, {}}});
  EXPECT_TRUE(results[0]);
  EXPECT_FALSE(results[1]);
}

TEST_F(OrderedFileTest, AnErrorEndsTheTurn) {
  for (int k = 0; k < 3; ++k) {
    broken_ = {0, 1};
    EXPECT_FALSE(read_one(0, 1_MiB));
  }
  broken_ = {kFileBytes, kFileBytes + 1};
  EXPECT_TRUE(read_one(0, 1_MiB));
}

}  // namespace
}  // namespace ckfs
