// Where requests go; and that a fair lock is fair.
#include "io/file_order.h"

#include <gtest/gtest.h>
#include <thread>
#include <vector>

namespace ckfs {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

class FileOrderTest : public testing::Test {
 protected:
  FileOrder::Choice read(std::uint64_t begin, std::uint64_t size, bool keeps_pages = true) {
    const ByteRange request{begin, begin + size};
    const FileOrder::Choice choice = order_.choose(request, keeps_pages);
    order_.advance(request, choice);
    return choice;
  }

  bool recently_passed(unsigned stream, ByteRange request) {
    const auto passed = order_.passed(request);
    return passed && passed->stream == stream && passed->recently;
  }

  FileOrder order_;
};

TEST_F(FileOrderTest, OneReaderHasOneStream) {
  for (std::uint64_t begin : {0 * kMiB, 500 * kMiB + 1000}) {
    const FileOrder::Choice first = read(begin, kMiB);
    EXPECT_EQ(first.continues, begin == 0);
    for (std::uint64_t k = 1; k < 100; ++k) {
      const FileOrder::Choice next = read(begin + k * kMiB, kMiB);
      EXPECT_EQ(next.descriptor, first.descriptor);
      EXPECT_TRUE(next.continues);
      EXPECT_TRUE(next.through.empty());
    }
  }
}

TEST_F(FileOrderTest, TheHeaderBeginsTheFirstStream) {
  EXPECT_EQ(read(0, 8).descriptor, 0u);
  EXPECT_EQ(read(8, 5000).descriptor, 0u);
  const FileOrder::Choice data = read(5100, kMiB);
  EXPECT_TRUE(data.continues);
  EXPECT_EQ(data.through, (ByteRange{5008, 5100}));
  EXPECT_EQ(read(900 * kMiB, 8).descriptor, FileOrder::kJumps);
}

TEST_F(FileOrderTest, TwoReadersDoNotDisturbEachOther) {
  const unsigned one = read(0, kMiB).descriptor, two = read(500 * kMiB, kMiB).descriptor;
  EXPECT_NE(one, two);
  for (std::uint64_t k = 1; k < 20; ++k) {
    EXPECT_EQ(read(k * kMiB, kMiB).descriptor, one);
    EXPECT_EQ(read((500 + k) * kMiB, kMiB).descriptor, two);
  }
}

TEST_F(FileOrderTest, AThirdReaderTakesTheStreamThatIsIdle) {
  const unsigned one = read(0, kMiB).descriptor, two = read(500 * kMiB, kMiB).descriptor;
  read(kMiB, kMiB);
  EXPECT_EQ(read(900 * kMiB, kMiB).descriptor, two);
  EXPECT_EQ(read(2 * kMiB, kMiB).descriptor, one);
}

TEST_F(FileOrderTest, SmallRequestsElsewhereLeaveTheStreamsAlone) {
  const unsigned stream = read(0, 8 * kMiB).descriptor;
  EXPECT_EQ(read(900 * kMiB, 4096).descriptor, FileOrder::kJumps);
  EXPECT_EQ(read(300 * kMiB, FileOrder::kSmall).descriptor, FileOrder::kJumps);
  const FileOrder::Choice next = read(8 * kMiB, kMiB);
  EXPECT_EQ(next.descriptor, stream);
  EXPECT_TRUE(next.through.empty());
}

TEST_F(FileOrderTest, ASettledStreamReadsOnToAScaleBehindItsWeight) {
  const unsigned stream = read(0, FileOrder::kSettled).descriptor;
  const FileOrder::Choice scale = read(14 * kMiB, 4096);
  EXPECT_EQ(scale.descriptor, stream);
  EXPECT_EQ(scale.through, (ByteRange{FileOrder::kSettled, 14 * kMiB}));
  // The weight itself has streamed by.
  EXPECT_TRUE(recently_passed(stream, {FileOrder::kSettled, FileOrder::kSettled + kMiB}));
  EXPECT_FALSE(order_.passed({14 * kMiB, 15 * kMiB}));
}

TEST_F(FileOrderTest, AYoungStreamReadsOnToTheScaleOfItsFirstWeight) {
  EXPECT_EQ(read(0, 9000).descriptor, 0u);
  EXPECT_EQ(read(14 * kMiB, 4096).descriptor, FileOrder::kJumps);  // nothing but the header so far
  EXPECT_EQ(read(9000, FileOrder::kSmall).descriptor, 0u);
  EXPECT_EQ(read(90 * kMiB, 4096).descriptor, FileOrder::kJumps);
  const FileOrder::Choice scale = read(14 * kMiB, 4096);
  EXPECT_EQ(scale.descriptor, 0u);
  EXPECT_TRUE(scale.continues);
}

TEST_F(FileOrderTest, AYoungStreamReadsOnToTheFirstWeightBehindAllScales) {
  read(0, 8870);
  EXPECT_EQ(read(8870, 224).descriptor, 0u);
  const FileOrder::Choice weight = read(137'894, 63'312);  // the first page of a view
  EXPECT_EQ(weight.descriptor, 0u);
  EXPECT_EQ(weight.through, (ByteRange{9094, 137'894}));
}

TEST_F(FileOrderTest, WhatIsReadOnTheWayMakesNoReaderOfAStream) {
  read(0, 9000);
  EXPECT_FALSE(read(kMiB, 4096).through.empty());
  EXPECT_EQ(read(60 * kMiB, 4096).descriptor, FileOrder::kJumps);
  EXPECT_EQ(read(2 * kMiB, 4096).descriptor, 0u);
}

TEST_F(FileOrderTest, WhatIsAskedForAgainMakesNoReaderEither) {
  for (std::uint64_t k = 0; k < 8; ++k) read(k * 4096, FileOrder::kSmall);
  EXPECT_EQ(read(40 * kMiB, 4096).descriptor, FileOrder::kJumps);
}

TEST_F(FileOrderTest, SmallRequestsOfAFileThatNobodyStreamsReadNothingOnTheirWay) {
  EXPECT_EQ(read(kMiB, 4096).descriptor, FileOrder::kJumps);
  read(0, 8870);
  EXPECT_EQ(read(3 * kMiB, 4096).descriptor, FileOrder::kJumps);
}

TEST_F(FileOrderTest, AYoungStreamReadsOnToWhatIsNearAndNotSmall) {
  const unsigned stream = read(0, FileOrder::kSettled / 2).descriptor;
  EXPECT_EQ(read(24 * kMiB, 4096).descriptor, FileOrder::kJumps);
  EXPECT_EQ(read(2 * kMiB, kMiB).descriptor, stream);  // overtook those before it
  EXPECT_TRUE(recently_passed(stream, {kMiB, 2 * kMiB}));
}

TEST_F(FileOrderTest, ReadsNothingOnItsWayWherePagesAreNotKept) {
  read(0, 8 * kMiB, false);
  const FileOrder::Choice scale = read(14 * kMiB, 4096, false);
  EXPECT_EQ(scale.descriptor, FileOrder::kJumps);
  EXPECT_TRUE(scale.through.empty());
}

TEST_F(FileOrderTest, WhatPassedLongAgoIsNotTakenToBeCached) {
  const unsigned stream = read(0, kMiB).descriptor;
  for (std::uint64_t k = 1; k < 200; ++k) read(k * kMiB, kMiB);
  const auto long_ago = order_.passed({0, kMiB});
  ASSERT_TRUE(long_ago);
  EXPECT_EQ(long_ago->stream, stream);
  EXPECT_FALSE(long_ago->recently);
  EXPECT_TRUE(recently_passed(stream, {199 * kMiB, 200 * kMiB}));
  EXPECT_FALSE(order_.passed({199 * kMiB, 200 * kMiB + 1}));
}

TEST_F(FileOrderTest, AStreamGoesBackToWhatIsNoLongerCached) {
  const unsigned stream = read(0, 8 * kMiB).descriptor;
  const FileOrder::Choice gone = read(2 * kMiB, kMiB);
  EXPECT_EQ(gone.descriptor, stream);
  EXPECT_FALSE(gone.continues);
  EXPECT_TRUE(read(3 * kMiB, kMiB).continues);
}

TEST_F(FileOrderTest, AFarJumpBeginsAStreamAnew) {
  const unsigned one = read(0, 8 * kMiB).descriptor;
  const FileOrder::Choice far = read(8 * kMiB + FileOrder::kThrough + 1, kMiB);
  EXPECT_NE(far.descriptor, one);
  EXPECT_TRUE(far.through.empty());
}

TEST(FairMutex, IsGivenInTheOrderOfAsking) {
  constexpr unsigned kThreads = 8;
  for (int round = 0; round < 20; ++round) {
    FairMutex fair;
    std::vector<unsigned> order;  // guarded by `fair`
    fair.lock();
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        const std::lock_guard turn(fair);
        order.push_back(t);
      });
      while (fair.waiting() <= t) std::this_thread::yield();
    }
    fair.unlock();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(order, (std::vector<unsigned>{0, 1, 2, 3, 4, 5, 6, 7}));
    EXPECT_EQ(fair.waiting(), 0u);
  }
}

}  // namespace
}  // namespace ckfs
