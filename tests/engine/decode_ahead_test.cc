#include "engine/decode_ahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>

#include "base/units.h"

namespace ckfs {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::shared_ptr<ReadStream> stream_of(std::uint64_t size) {
  auto file = std::make_shared<FileLayout>();
  file->size = size;
  return std::make_shared<ReadStream>(std::move(file));
}

TEST(SequentialRule, TakesALargeRequestAtOnce) {
  EXPECT_TRUE(SequentialRule().saw({40_MiB, 41_MiB}));
}

TEST(SequentialRule, WantsThreeSmallOnesInARow) {
  SequentialRule rule;
  EXPECT_FALSE(rule.saw({10_MiB, 10_MiB + 4096}));
  EXPECT_FALSE(rule.saw({10_MiB + 4096, 10_MiB + 8192}));
  EXPECT_TRUE(rule.saw({10_MiB + 8192, 10_MiB + 12288}));
}

TEST(SequentialRule, BearsRequestsOutOfOrder) {
  SequentialRule rule;
  rule.saw({0, 128_KiB});
  rule.saw({256_KiB, 384_KiB});
  EXPECT_TRUE(rule.saw({128_KiB, 256_KiB}));
}

TEST(SequentialRule, StaysQuietUnderRandomReads) {
  SequentialRule rule;
  std::mt19937_64 random(1);
  for (int k = 0; k < 1000; ++k) {
    // 4 KiB at multiples of 4 MiB: never near the one before, unless it is the same.
    const std::uint64_t at = (2 * (random() % 1000) + static_cast<std::uint64_t>(k % 2)) * 4_MiB;
    EXPECT_FALSE(rule.saw({at, at + 4096}));
  }
}

TEST(ReadStream, AdvisesTheChunksAfterASequentialRequest) {
  const auto stream = stream_of(20_MiB);
  const auto advice = stream->advise({0, 1_MiB});
  EXPECT_TRUE(advice.sequential);
  EXPECT_THAT(advice.ahead, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(stream->advise({1_MiB, 2_MiB}).ahead, ElementsAre(5));
}

TEST(ReadStream, SaysWhichChunksWereReadToTheirEnd) {
  const auto stream = stream_of(20_MiB);
  stream->advise({0, 1_MiB});
  const ByteRange front{1_MiB, 1_MiB + 512_KiB};
  const ByteRange back{1_MiB + 512_KiB, 2_MiB};
  EXPECT_THAT(stream->advise(front).passed, IsEmpty());
  EXPECT_THAT(stream->advise(back).passed, IsEmpty());
  EXPECT_THAT(stream->answered(back), IsEmpty());
  EXPECT_TRUE(stream->wants(1));
  EXPECT_THAT(stream->answered(front), ElementsAre(1));
  EXPECT_FALSE(stream->wants(1));
}

TEST(ReadStream, GivesAChunkToTheRequestThatReadsItWhole) {
  const auto stream = stream_of(20_MiB);
  stream->advise({0, 1_MiB});
  EXPECT_TRUE(stream->wants(1));
  const auto advice = stream->advise({1_MiB, 2_MiB});
  EXPECT_THAT(advice.passed, ElementsAre(1));
  EXPECT_THAT(advice.whole, IsEmpty());
  EXPECT_FALSE(stream->wants(1));
}

TEST(ReadStream, WantsWholeWhatItReadsInParts) {
  const auto stream = stream_of(20_MiB);
  EXPECT_THAT(stream->advise({0, 256_KiB}).whole, ElementsAre(0));
  EXPECT_THAT(stream->advise({256_KiB, 1_MiB + 256_KiB}).whole, ElementsAre(0, 1));
  EXPECT_THAT(stream->advise({1_MiB + 256_KiB, 2_MiB + 256_KiB}).whole, ElementsAre(1, 2));
}

TEST(ReadStream, WantsNotWholeWhatItEnteredInTheMiddle) {
  const auto stream = stream_of(20_MiB);
  // As the kernel's readahead may send them: the second before the first.
  EXPECT_THAT(stream->advise({256_KiB, 1_MiB + 256_KiB}).whole, ElementsAre(1));
  EXPECT_THAT(stream->advise({0, 256_KiB}).whole, IsEmpty());
}

TEST(ReadStream, StopsAtTheEndOfTheFile) {
  const auto stream = stream_of(2_MiB + 5);
  EXPECT_THAT(stream->advise({0, 1_MiB}).ahead, ElementsAre(1, 2));
  EXPECT_THAT(stream->advise({1_MiB, 2_MiB}).ahead, IsEmpty());
  EXPECT_THAT(stream->advise({2_MiB, 2_MiB + 5}).passed, ElementsAre(2));
}

TEST(ReadStream, AdvisesNothingForRandomReads) {
  const auto stream = stream_of(100_MiB);
  EXPECT_THAT(stream->advise({50_MiB, 50_MiB + 4096}).ahead, IsEmpty());
  EXPECT_THAT(stream->advise({10_MiB, 10_MiB + 4096}).ahead, IsEmpty());
}

TEST(ReadStream, BeginsAnewAfterASeek) {
  const auto stream = stream_of(100_MiB);
  stream->advise({50_MiB, 51_MiB});
  EXPECT_THAT(stream->advise({0, 1_MiB}).ahead, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(stream->advise({80_MiB, 81_MiB}).ahead, ElementsAre(81, 82, 83, 84));
}

TEST(ReadStream, LeavesWhatItDidNotRead) {
  const auto stream = stream_of(20_MiB);
  stream->advise({0, 1_MiB});
  stream->advise({1_MiB, 2_MiB});
  EXPECT_THAT(stream->abandon(), ElementsAre(2, 3, 4, 5));
  EXPECT_FALSE(stream->wants(2));
}

}  // namespace
}  // namespace ckfs
