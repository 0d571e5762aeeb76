#include "container/array_chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <rapidcheck/gtest.h>
#include <set>

#include "container/array_source.h"
#include "expr/box.h"
#include "support/model_catalog.h"
#include "support/random_expr.h"

namespace ckfs {
namespace {

using testing::ElementsAre;
using Shape = std::vector<std::int64_t>;

/// Matrices of one shape, two to a shard.
std::vector<TensorExpr> matrices(ModelCatalog& model, std::int64_t count, const Shape& shape,
                                 std::shared_ptr<const Catalog>& catalog) {
  for (std::int64_t i = 0; i < count; i += 2) {
    model.shard(fmt::format("{}", i), {{fmt::format("m{}", i), DType::BF16, shape},
                                       {fmt::format("m{}", i + 1), DType::BF16, shape}});
  }
  catalog = model.build();
  std::vector<TensorExpr> all;
  for (std::int64_t i = 0; i < count; ++i) {
    all.push_back(TensorExpr::stored(*catalog, *catalog->find(fmt::format("m{}", i))));
  }
  return all;
}

const Shape kTurn{1, 0};

/// [in, layer, out] of matrices [out, in].
TensorExpr scanned_kernel(std::span<const TensorExpr> layers) {
  std::vector<TensorExpr> turned;
  for (const TensorExpr& matrix : layers) turned.push_back(*matrix.transpose(kTurn));
  return *TensorExpr::stack(turned, 1);
}

TEST(ArraySource, OfAMatrixIsTheMatrix) {
  ModelCatalog model;
  std::shared_ptr<const Catalog> catalog;
  const std::vector<TensorExpr> all = matrices(model, 2, {6, 4}, catalog);
  const ArraySource whole = array_source(*catalog, all[0]);
  EXPECT_THAT(whole.cell, ElementsAre(6, 4));
  EXPECT_THAT(whole.order, ElementsAre(0, 1));
  EXPECT_THAT(whole.cell_order, ElementsAre());
  const ArraySource turned = array_source(*catalog, *all[0].transpose(kTurn));
  EXPECT_THAT(turned.cell, ElementsAre(4, 6));
  EXPECT_THAT(turned.order, ElementsAre(1, 0));
  // Heads out of the rows, behind the columns.
  const Shape heads{4, 2, 3};
  const ArraySource split = array_source(*catalog, *(*all[0].transpose(kTurn)).reshape(heads));
  EXPECT_THAT(split.cell, ElementsAre(4, 2, 3));
  EXPECT_THAT(split.order, ElementsAre(1, 2, 0));
}

TEST(ArraySource, OfAStackHasACellForEachMatrixInTheOrderOfFiles) {
  ModelCatalog model;
  std::shared_ptr<const Catalog> catalog;
  std::vector<TensorExpr> all = matrices(model, 6, {6, 4}, catalog);
  // [expert, layer, in, out]: the source has layer by layer, in it expert by expert.
  std::vector<TensorExpr> experts;
  for (std::int64_t e = 0; e < 3; ++e) {
    std::vector<TensorExpr> layers;
    for (std::int64_t l = 0; l < 2; ++l) {
      layers.push_back(*all[static_cast<std::size_t>(l * 3 + e)].transpose(kTurn));
    }
    experts.push_back(*TensorExpr::stack(layers, 0));
  }
  const ArraySource source = array_source(*catalog, *TensorExpr::stack(experts, 0));
  EXPECT_THAT(source.cell, ElementsAre(1, 1, 4, 6));
  EXPECT_THAT(source.order, ElementsAre(0, 1, 3, 2));
  EXPECT_THAT(source.cell_order, ElementsAre(1, 0));
}

TEST(ArraySource, TakesPaddingForNoTensor) {
  ModelCatalog model;
  std::shared_ptr<const Catalog> catalog;
  const std::vector<TensorExpr> all = matrices(model, 2, {6, 4}, catalog);
  EXPECT_THAT(array_source(*catalog, *all[0].pad(0, 0, 3)).cell, ElementsAre(9, 4));
  const std::vector<TensorExpr> two(all.begin(), all.end());
  EXPECT_THAT(array_source(*catalog, *TensorExpr::concat(two, 0)).cell, ElementsAre(6, 4));
}

/// Elements of chunk `index` of a dense tensor, in the stored order.
DenseTensor dense_chunk(DenseTensor tensor, const ArrayChunks& chunks, const Shape& index) {
  for (std::size_t d = 0; d < index.size(); ++d) {
    tensor = dense_slice(tensor, static_cast<std::int64_t>(d), index[d] * chunks.chunk()[d],
                         chunks.chunk()[d], 1);
  }
  if (chunks.order().empty()) return tensor;
  return dense_transpose(tensor, {chunks.order().begin(), chunks.order().end()});
}

// A source may have them (two each are one): only the outermost dimension can be cut then.
TEST(ArrayChunks, AreNotCutOutOfMoreBoxesThanTheLimit) {
  for (const std::int64_t columns : {std::int64_t{1000}, std::int64_t{2 * kMaxBoxes} + 1000}) {
    CatalogBuilder builder("test");
    const Extent extent{0, 0, static_cast<std::uint64_t>(2 * columns)};
    const StorageId storage = builder.add_storage(DType::U8, 2 * columns, std::span(&extent, 1));
    std::vector<std::int64_t> order(static_cast<std::size_t>(columns));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, std::mt19937(1));
    std::vector<StorageBox> parts;
    for (std::int64_t column = 0; column < columns; ++column) {
      parts.push_back(
          {storage, 2 * order[static_cast<std::size_t>(column)], {0, column}, {2, 1}, {1, 1}});
    }
    const Shape shape{2, columns};
    const TensorId id = builder.add_tensor("w", shape, storage, std::move(parts));
    builder.add_only_shard({id});
    const auto catalog = std::move(builder).build();
    const auto fits = check_sliceable(TensorExpr::stored(*catalog, 0));
    EXPECT_EQ(fits.has_value(), columns == 1000);
    if (!fits) {
      EXPECT_EQ(fits.error().code(), ErrorCode::Unsupported);
      EXPECT_THAT(fits.error().message(), testing::HasSubstr(" boxes (limit 262144)"));
    }
  }
}

// Rows in any order, of which each is transposed by itself: an interval of columns cuts each in up
// to three pieces.
TEST(ArrayChunks, AreNotCutOutOfMorePiecesThanTheLimit) {
  for (const std::int64_t rows : {std::int64_t{1000}, std::int64_t{200'000}}) {
    CatalogBuilder builder("test");
    const std::int64_t numel = rows * 4 * 131;
    const Extent extent{0, 0, static_cast<std::uint64_t>(numel)};
    const StorageId storage = builder.add_storage(DType::U8, numel, std::span(&extent, 1));
    std::vector<std::int64_t> order(static_cast<std::size_t>(rows));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, std::mt19937(1));
    std::vector<StorageBox> parts;
    for (std::int64_t row = 0; row < rows; ++row) {
      parts.push_back({storage,
                       524 * order[static_cast<std::size_t>(row)],
                       {row, 0, 0},
                       {1, 4, 131},
                       {524, 131, 1}});
    }
    const TensorId id = builder.add_tensor("w", Shape{rows, 4, 131}, storage, std::move(parts));
    builder.add_only_shard({id});
    const auto catalog = std::move(builder).build();
    const TensorExpr turned = TensorExpr::stored(*catalog, id)
                                  .transpose(Shape{0, 2, 1})
                                  .value()
                                  .reshape(Shape{rows, 524})
                                  .value();
    const auto fits = check_sliceable(turned);
    EXPECT_EQ(fits.has_value(), rows == 1000);
    if (!fits) {
      EXPECT_THAT(fits.error().message(), testing::HasSubstr("pieces (limit 262144)"));
    }
  }
}

RC_GTEST_PROP(ArrayChunks, ShowEachElementOnce, ()) {
  const Choose choose = rapidcheck_choices();
  const RandomCheckpoint checkpoint = random_checkpoint(choose);
  const RandomExpr random = random_expr(choose, checkpoint);
  RC_PRE(bits(random.expr.dtype()) % 8 == 0);
  const std::span<const std::int64_t> shape = random.expr.shape();
  // As many devices as there are divisors to choose from: arrays here are smaller than a chunk.
  Shape split;
  for (const std::int64_t extent : shape) {
    std::int64_t parts = extent == 0 ? 1 : 1 + choose(extent);
    while (extent % parts != 0) --parts;
    split.push_back(parts);
  }
  RC_ASSERT(check_sliceable(random.expr).has_value());
  const bool empty = random.expr.numel() == 0;
  const ArraySource source = empty ? ArraySource{} : array_source(*checkpoint.catalog, random.expr);
  const auto orders = choose(2) == 0 ? ChunkOrders::Any : ChunkOrders::AsOrTurned;
  const ArrayChunks chunks(random.expr.dtype(), shape, split, source, orders);
  RC_ASSERT((chunks.count() == 0) == empty);
  std::set<Shape> indices;
  for (std::uint64_t number = 0; number < chunks.count(); ++number) {
    const Shape index = chunks.index(number);
    RC_ASSERT(chunks.number(index) == number);
    RC_ASSERT(indices.insert(index).second);
    if (number > 40) continue;
    const TensorExpr expr = *chunks.expr(random.expr, number, 1);
    RC_ASSERT(expr.nbytes() == chunks.bytes());
    RC_ASSERT(dense_boxes(expr).elements == dense_chunk(random.value, chunks, index).elements);
    if (number % chunks.together() != 0) continue;
    std::vector<Origin> all;
    for (std::uint64_t k = number; k < number + chunks.together(); ++k) {
      const DenseTensor chunk = dense_chunk(random.value, chunks, chunks.index(k));
      all.insert(all.end(), chunk.elements.begin(), chunk.elements.end());
    }
    RC_ASSERT(dense_boxes(*chunks.expr(random.expr, number, chunks.together())).elements == all);
  }
  RC_ASSERT(chunks.count() % chunks.together() == 0);
}

TEST(ArrayChunks, AreRunsOfTheSourceWhereAnyOrderMakesThemSo) {
  ModelCatalog model;
  std::shared_ptr<const Catalog> catalog;
  const std::vector<TensorExpr> all = matrices(model, 4, {6, 4}, catalog);
  const Shape heads{4, 4, 3, 2};
  // [in, layer, heads, size], a layer and two heads to a device: rows of the source.
  const TensorExpr scanned = *scanned_kernel(all).reshape(heads);
  const ArrayChunks chunks(DType::BF16, heads, Shape{1, 4, 3, 1}, array_source(*catalog, scanned),
                           ChunkOrders::Any);
  ASSERT_EQ(chunks.count(), 12U);
  for (std::uint64_t k = 0; k < chunks.count(); ++k) {
    const std::vector<Box> boxes = chunks.expr(scanned, k, 1)->boxes();
    ASSERT_EQ(boxes.size(), 1U);
    EXPECT_EQ(boxes[0].loops, (std::vector<Loop>{{8, 1, 1}}));
    EXPECT_EQ(boxes[0].source_offset, static_cast<std::int64_t>(k % 3) * 8);
  }
}

TEST(ArrayChunks, FollowEachOtherAsTheirSourcesDo) {
  ModelCatalog model;
  std::shared_ptr<const Catalog> catalog;
  const std::vector<TensorExpr> all = matrices(model, 4, {6, 4}, catalog);
  // For two devices along `in`: columns of the source.
  const TensorExpr scanned = scanned_kernel(all);
  const Shape split{2, 4, 1};
  const ArrayChunks chunks(DType::BF16, scanned.shape(), split, array_source(*catalog, scanned),
                           ChunkOrders::Any);
  EXPECT_THAT(chunks.chunk(), ElementsAre(2, 1, 6));
  EXPECT_THAT(chunks.order(), ElementsAre(1, 2, 0));
  EXPECT_THAT(chunks.index(0), ElementsAre(0, 0, 0));
  EXPECT_THAT(chunks.index(1), ElementsAre(1, 0, 0));  // both halves of a layer, then the next
  EXPECT_THAT(chunks.index(2), ElementsAre(0, 1, 0));
  EXPECT_EQ(chunks.together(), 2U);
}

TEST(ArrayChunks, AreReadTogetherWhereTheyShareShortRows) {
  ModelCatalog model;
  std::shared_ptr<const Catalog> catalog;
  const std::vector<TensorExpr> narrow = matrices(model, 2, {6, 2048}, catalog);
  ModelCatalog other;
  std::shared_ptr<const Catalog> others;
  const std::vector<TensorExpr> wide = matrices(other, 2, {6, 8192}, others);
  const Shape split{1, 16};
  const auto together = [&](const Catalog& of, const TensorExpr& expr) {
    return ArrayChunks(DType::BF16, expr.shape(), split, array_source(of, expr), ChunkOrders::Any)
        .together();
  };
  EXPECT_EQ(together(*catalog, narrow[0]), 16U);
  EXPECT_EQ(together(*others, wide[0]), 1U);
}

}  // namespace
}  // namespace ckfs
