#include "engine/read_stream.h"

#include <gtest/gtest.h>
#include <random>
#include <thread>

#include "base/units.h"

namespace ckfs {
namespace {

/// A file of 64 tensors of `tensor` bytes each.
std::shared_ptr<const FileLayout> file_of(std::uint64_t tensor) {
  auto file = std::make_shared<FileLayout>();
  for (std::uint32_t k = 0; k < 64; ++k) {
    file->segments.push_back({file->size, 0, k, Segment::Kind::Tensor});
    file->size += tensor;
  }
  file->finish();
  return file;
}

class ReadStreamTest : public testing::Test {
 protected:
  std::shared_ptr<ReadStream> open(StreamOptions options = {}) {
    return std::make_shared<ReadStream>(
        file_, std::move(options),
        [file = file_](std::uint64_t offset) { return file->piece_at(offset); }, habit_);
  }

  /// Reads [begin, end) in requests of `size`; gives the end of what was started or hinted.
  std::uint64_t read(ReadStream& stream, std::uint64_t begin, std::uint64_t end,
                     std::uint64_t size) {
    std::uint64_t furthest = 0;
    for (std::uint64_t at = begin; at < end; at += size) {
      const ByteRange request{at, std::min(end, at + size)};
      const auto advice = stream.advise(request, {.ahead = 64_MiB});
      for (const ByteRange& unit : advice.start) furthest = std::max(furthest, unit.end);
      furthest = std::max(furthest, advice.hint.end);
      stream.answered(request);
    }
    return furthest;
  }

  std::shared_ptr<const FileLayout> file_ = file_of(14_MiB);
  std::shared_ptr<ReaderHabit> habit_ = std::make_shared<ReaderHabit>();
};

TEST_F(ReadStreamTest, OneRequestIsNoRunHoweverLarge) {
  const auto stream = open();
  const auto advice = stream->advise({100_MiB, 101_MiB}, {.ahead = 64_MiB});
  EXPECT_FALSE(advice.sequential);
  EXPECT_TRUE(advice.start.empty());
  EXPECT_TRUE(advice.hint.empty());
}

TEST_F(ReadStreamTest, WhoAsksForMuchAtOnceIsAnsweredAndNotDeliveredTo) {
  EXPECT_FALSE(open()->takes_deliveries());
  const auto stream =
      open({.deliver = [](std::uint64_t, std::span<const std::byte>) { return true; }});
  EXPECT_TRUE(stream->takes_deliveries());
  read(*stream, 0, 40_MiB, 128_KiB);
  EXPECT_TRUE(stream->takes_deliveries());
  // Read-ahead that was raised grows to its size, and from there on asks for pages that are left.
  read(*stream, 40_MiB, 41_MiB, 256_KiB);
  EXPECT_FALSE(stream->takes_deliveries());
  read(*stream, 41_MiB, 42_MiB, 4_KiB);
  EXPECT_FALSE(stream->takes_deliveries());
}

TEST_F(ReadStreamTest, OneFarJumpEndsARun) {
  const auto stream = open();
  read(*stream, 0, 40_MiB, 1_MiB);
  for (int k = 0; k < 50; ++k) {
    const std::uint64_t at = 50_MiB + static_cast<std::uint64_t>(k) * 14_MiB;
    const auto advice = stream->advise({at, at + 1_MiB}, {.ahead = 64_MiB});
    EXPECT_FALSE(advice.sequential);
    EXPECT_TRUE(advice.start.empty());
  }
  EXPECT_EQ(stream->remembered(), 0U);
}

TEST_F(ReadStreamTest, NothingIsStartedBeyondAQuarterOfTheRunOrTheTensor) {
  for (const std::uint64_t size : {128_KiB, 256_KiB, 1_MiB}) {
    const auto stream = open();
    for (std::uint64_t tensor = 0; tensor < 8; ++tensor) {
      const std::uint64_t begin = tensor * 14_MiB;
      const std::uint64_t end = begin + 14_MiB / 4;
      EXPECT_LE(read(*stream, begin, end, size), end + 14_MiB / 16) << size;
    }
  }
  const auto stream = open();
  EXPECT_LE(read(*stream, 14_MiB, 28_MiB - 4096, 1_MiB), 28_MiB);
}

TEST_F(ReadStreamTest, OfAFarSourceNoMoreIsRiskedThanWasReadAndAFixedAmount) {
  const SourceWish far{.ahead = 64_MiB, .far = true};
  for (const std::uint64_t size : {128_KiB, 1_MiB}) {
    const auto stream = open();
    const std::uint64_t begin = 14_MiB;
    for (std::uint64_t at = begin; at < begin + 14_MiB; at += size) {
      const auto advice = stream->advise({at, at + size}, far);
      const std::uint64_t end = at + size;
      const std::uint64_t most = end + std::max(4_MiB, end - begin);
      for (const ByteRange& unit : advice.start) EXPECT_LE(unit.end, most);
      EXPECT_LE(advice.whole_until, std::max(28_MiB, end + 4_MiB));
      EXPECT_LE(advice.hint.end, most);
      stream->answered({at, at + size});
    }
  }
}

TEST_F(ReadStreamTest, OfASourceThatLikesStepsTheTensorIsRiskedUnlessReadersHaveLeftSome) {
  const SourceWish far{.ahead = 256_MiB, .far = true, .step = 16_MiB};
  const auto most_of = [&](std::uint64_t factor) {
    const auto stream = open();
    std::uint64_t furthest = 0;
    for (std::uint64_t end = 1_MiB; end <= 12_MiB; end += 1_MiB) {
      const auto advice = stream->advise({end - 1_MiB, end}, far);
      for (const ByteRange& unit : advice.start) {
        EXPECT_LE(unit.end, std::max(end + 4_MiB, std::min(end + factor * end, 14_MiB)));
        furthest = std::max(furthest, unit.end - end);
      }
      stream->answered({end - 1_MiB, end});
    }
    return furthest;
  };
  EXPECT_GE(most_of(16), 11_MiB);  // at once
  habit_->ended(false);
  ASSERT_TRUE(habit_->reads_parts());
  EXPECT_LE(most_of(1), 7_MiB);
}

TEST_F(ReadStreamTest, AFarSourceIsAskedInSteps) {
  struct Case {
    std::uint64_t ahead, step, expected;  // MiB
  };
  // As large as it likes, but sixteen are under way together where that leaves 8 MiB for each.
  for (const Case& each : {Case{64, 16, 8}, Case{64, 2, 2}, Case{256, 16, 16}}) {
    const SourceWish far{.ahead = each.ahead << 20, .far = true, .step = each.step << 20};
    const auto stream = open({.whole = true});
    std::uint64_t steps = 0, started = 0;
    const std::uint64_t end = 400_MiB - far.ahead, begin = end - 96_MiB;
    for (std::uint64_t read = 0; read < end; read += 1_MiB) {
      const auto advice = stream->advise({read, read + 1_MiB}, far);
      if (!advice.start.empty()) {
        started = advice.start.back().end;
        if (read >= begin) {
          ++steps;
          EXPECT_GE(advice.start.size(), each.expected - 1);
        }
      }
      // What is under way is never less than what is wanted ahead, but for one step.
      if (read >= begin) {
        EXPECT_GE(started, read + far.ahead - (each.expected << 20));
      }
      stream->answered({read, read + 1_MiB});
    }
    EXPECT_NEAR(static_cast<double>(steps), 96. / static_cast<double>(each.expected), 2);
  }
}

TEST_F(ReadStreamTest, ASourceThatStreamsIsAskedInLargeStepsAndNotHintedAt) {
  const SourceWish streams{.ahead = 64_MiB, .in_order = true};
  const auto stream = open();
  std::uint64_t read = 0, steps = 0, started = 0;
  for (; read < 140_MiB; read += 1_MiB) {
    const auto advice = stream->advise({read, read + 1_MiB}, streams);
    EXPECT_TRUE(advice.hint.empty());
    if (read >= 70_MiB && !advice.start.empty()) {
      ++steps;
      started += advice.start.size();
      EXPECT_LE(advice.start.back().end, read + 18_MiB);
    }
    stream->answered({read, read + 1_MiB});
  }
  EXPECT_GE(started, 60U);
  EXPECT_LE(steps, 10U);
}

TEST_F(ReadStreamTest, ARequestThatComesLateBelongsToItsRun) {
  const auto stream = open();
  read(*stream, 0, 40_MiB, 1_MiB);
  const auto late = stream->advise({37_MiB, 37_MiB + 128_KiB}, {.ahead = 64_MiB});
  EXPECT_TRUE(late.sequential);
  const auto on = stream->advise({40_MiB, 41_MiB}, {.ahead = 64_MiB});
  EXPECT_TRUE(on.sequential);
}

TEST_F(ReadStreamTest, AReaderWhoPassesTensorsGetsWhatComesBehindThem) {
  const auto stream = open();
  EXPECT_GT(read(*stream, 0, 20_MiB, 1_MiB), 28_MiB);
}

TEST_F(ReadStreamTest, ReadersWhoFinishTensorsGetTheNextOneWhole) {
  for (std::uint64_t k = 0; k < 3; ++k) {  // a new file for each tensor, in no order
    const auto stream = open();
    read(*stream, (7 * k + 3) * 14_MiB, (7 * k + 4) * 14_MiB, 128_KiB);
    stream->abandon();
  }
  ASSERT_TRUE(habit_->reads_whole());
  const auto stream = open();
  const auto advice = stream->advise({42_MiB, 42_MiB + 128_KiB}, {.ahead = 64_MiB});
  EXPECT_TRUE(advice.sequential);
  EXPECT_EQ(advice.hint.end, 56_MiB);
  for (std::uint64_t tensor = 20; tensor < 23; ++tensor) {
    read(*stream, tensor * 14_MiB, tensor * 14_MiB + 2_MiB, 128_KiB);
  }
  stream->abandon();
  EXPECT_FALSE(habit_->reads_whole());
}

TEST_F(ReadStreamTest, AReaderWhoPromisesToReadAllIsBelievedAtOnce) {
  const auto stream = open({.whole = true});
  const auto advice = stream->advise({0, 1_MiB}, {.ahead = 64_MiB});
  EXPECT_EQ(advice.hint.end, 65_MiB);
  EXPECT_FALSE(advice.start.empty());
}

TEST_F(ReadStreamTest, WhatIsStartedIsPassedInTheEnd) {
  const auto stream = open();
  std::multiset<std::uint64_t> started;
  std::multiset<std::uint64_t> passed;
  for (std::uint64_t at = 0; at < 200_MiB; at += 128_KiB) {
    const ByteRange request{at, at + 128_KiB};
    const auto advice = stream->advise(request, {});
    for (const ByteRange& unit : advice.start) started.insert(unit.begin);
    for (const std::uint64_t unit : advice.passed) passed.insert(unit);
    for (const std::uint64_t unit : stream->answered(request)) passed.insert(unit);
  }
  for (const std::uint64_t unit : stream->abandon()) passed.insert(unit);
  EXPECT_FALSE(started.empty());
  for (const std::uint64_t unit : started) EXPECT_EQ(passed.count(unit), 1U) << unit;
  EXPECT_EQ(stream->remembered(), 0U);
}

TEST_F(ReadStreamTest, FourRunsAtOnceAreToldApart) {
  const auto stream = open();
  bool sequential = true;
  for (std::uint64_t k = 0; k < 8; ++k) {
    for (std::uint64_t run = 0; run < ReadStream::kRuns; ++run) {
      const std::uint64_t at = run * 200_MiB + k * 1_MiB;
      const bool now = stream->advise({at, at + 1_MiB}, {}).sequential;
      if (k > 2) sequential = sequential && now;
    }
  }
  EXPECT_TRUE(sequential);
}

TEST_F(ReadStreamTest, RandomRequestsLeaveABoundedState) {
  const auto stream = open();
  const auto random_reads = [&](std::uint64_t seed, int count) {
    std::mt19937_64 random(seed);
    for (int k = 0; k < count; ++k) {
      const std::uint64_t size = 4096 + random() % 1_MiB;
      const std::uint64_t begin = random() % (file_->size - size);
      (void)stream->advise({begin, begin + size}, {.ahead = 16_MiB});
      (void)stream->answered({begin, begin + size});
      ASSERT_LE(stream->remembered(), ReadStream::kRuns * ReadStream::kMostUnits);
    }
  };
  random_reads(0, 100'000);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 1; t <= 8; ++t) threads.emplace_back(random_reads, t, 12'500);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ckfs
