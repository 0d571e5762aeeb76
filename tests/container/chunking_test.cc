#include "container/chunking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>
#include <rapidcheck/gtest.h>

#include "base/rounding.h"

namespace ckfs {
namespace {

using testing::ElementsAre;
using Shape = std::vector<std::int64_t>;

/// Of one source tensor in the given order; of matrices in a stack where `cell` says so.
ArraySource source_of(const Shape& cell, const Shape& order, const Shape& cell_order = {}) {
  return {cell, order, cell_order, Shape(cell.size(), 1)};
}

Shape bf16(const Shape& shape, const ArraySource& source, const Shape& split = {}) {
  return choose_chunk(shape, 2, split, source).shape;
}

TEST(Chunking, LeavesASmallArrayWhole) {
  EXPECT_THAT(bf16({7168}, source_of({7168}, {0})), ElementsAre(7168));
  EXPECT_THAT(bf16({}, source_of({}, {})), ElementsAre());
  // 58 tensors, because less than 4 MiB is all there is.
  EXPECT_THAT(bf16({7168, 58}, source_of({7168, 1}, {1, 0}, {1})), ElementsAre(7168, 58));
}

TEST(Chunking, HasChunksOfOneExpert) {
  const ArraySource unscanned = source_of({1, 7168, 2048}, {0, 2, 1}, {0});
  EXPECT_THAT(bf16({256, 7168, 2048}, unscanned), ElementsAre(1, 7168, 2048));
  const ArraySource scanned = source_of({1, 1, 7168, 2048}, {0, 1, 3, 2}, {1, 0});
  EXPECT_THAT(bf16({256, 58, 7168, 2048}, scanned), ElementsAre(1, 1, 7168, 2048));
}

TEST(Chunking, SpansExpertsRatherThanBeSmall) {
  const ArraySource unscanned = source_of({1, 2048, 768}, {0, 2, 1}, {0});
  EXPECT_THAT(bf16({128, 2048, 768}, unscanned), ElementsAre(2, 2048, 768));
  // Those that are neighbours in the source's files.
  const ArraySource scanned = source_of({1, 1, 2048, 768}, {0, 1, 3, 2}, {1, 0});
  EXPECT_THAT(bf16({128, 94, 2048, 768}, scanned), ElementsAre(2, 1, 2048, 768));
}

TEST(Chunking, CutsAMatrixAlongItsSlowestSourceDimension) {
  const ArraySource turned = source_of({7168, 18432}, {1, 0});
  EXPECT_THAT(bf16({7168, 18432}, turned), ElementsAre(7168, 4608));
  const ArraySource heads = source_of({128, 128, 7168}, {2, 0, 1});
  EXPECT_THAT(bf16({128, 128, 7168}, heads), ElementsAre(128, 128, 1792));
}

TEST(Chunking, CutsAtTheBordersOfDevices) {
  const ArraySource experts = source_of({1, 7168, 2048}, {0, 2, 1}, {0});
  // A device has 448 columns of an expert, 1.75 MiB: so four of its own experts.
  EXPECT_THAT(bf16({256, 7168, 2048}, experts, {2, 16, 1}), ElementsAre(4, 448, 2048));
  EXPECT_THAT(bf16({256, 7168, 2048}, experts, {256, 16, 1}), ElementsAre(1, 448, 2048));
  EXPECT_THAT(bf16({7168}, source_of({7168}, {0}), {16}), ElementsAre(448));
}

TEST(Chunking, CutsNoGranuleWhereItNeedNot) {
  ArraySource source = source_of({4096, 4096 * 9}, {0, 1});
  source.granule = {1, 4096};
  const Shape chunk = choose_chunk(Shape{4096, 4096 * 9}, 2, Shape{2048, 1}, source).shape;
  EXPECT_EQ(chunk, (Shape{2, 4096 * 9}));
}

TEST(Chunking, CutsAcrossRowsWhereTheyAreAPrimeNumber) {
  EXPECT_THAT(bf16({50257, 768}, source_of({50257, 768}, {0, 1})), ElementsAre(50257, 384));
}

TEST(Chunking, HasChunksOfOneElementWhereThereIsNone) {
  EXPECT_THAT(bf16({0, 5}, {}), ElementsAre(1, 1));
}

TEST(Chunking, TakesFewStepsForModelsAndNotManyForAnyShape) {
  const auto steps = [](const Shape& shape) {
    Shape order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    return choose_chunk(shape, 2, {}, source_of(shape, order)).steps;
  };
  EXPECT_LT(steps({256, 58, 7168, 2048}), 200'000U);
  EXPECT_LT(steps({(std::int64_t{1} << 40) + 15}), 70'000U);
  EXPECT_LT(steps({720720, 720720, 720720}), 3'000'000U);
  // Where the least divisor is a large one of a large number.
  EXPECT_THAT(bf16({65521LL * 65521}, source_of({65521LL * 65521}, {0})), ElementsAre(65521));
}

RC_GTEST_PROP(Chunking, DividesAndStaysBetweenTheLimitsWhereAnyDivisorsDo, ()) {
  const auto rank = *rc::gen::inRange<std::size_t>(1, 5);
  Shape shape, split, cell, order(rank);
  for (std::size_t d = 0; d < rank; ++d) {
    const auto parts = *rc::gen::element<std::int64_t>(1, 2, 3, 16);
    const auto in_cell = *rc::gen::element<std::int64_t>(1, 2, 30, 64, 448, 1024);
    const auto cells = *rc::gen::element<std::int64_t>(1, 5, 16);
    shape.push_back(parts * in_cell * cells);
    split.push_back(parts);
    cell.push_back(*rc::gen::element(shape[d], in_cell, parts * in_cell));
  }
  std::iota(order.begin(), order.end(), 0);
  const Shape chunk = choose_chunk(shape, 2, split, source_of(cell, order)).shape;
  std::uint64_t bytes = 2;
  std::uint64_t share = 2;
  for (std::size_t d = 0; d < rank; ++d) {
    RC_ASSERT(chunk[d] > 0);
    RC_ASSERT(shape[d] / split[d] % chunk[d] == 0);
    bytes *= static_cast<std::uint64_t>(chunk[d]);
    share *= static_cast<std::uint64_t>(shape[d] / split[d]);
  }
  // Shares are made of factors of 5 at most, and of 7 once: some product lies in every octave.
  RC_ASSERT(bytes <= kMostChunkBytes);
  RC_ASSERT(bytes >= std::min(share, kLeastChunkBytes));
}

}  // namespace
}  // namespace ckfs
