// Boxes against dense lists of elements (support/random_expr.h). The lists are made by doing each
// operation element by element; so an agreement covers the cutting and joining of boxes as well.
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <rapidcheck/gtest.h>
#include <set>

#include "expr/box.h"
#include "expr/tensor_expr.h"
#include "support/naive_view.h"
#include "support/random_expr.h"
#include "support/sanitized.h"

namespace ckfs {
namespace {

// The target indices of `boxes` and the source element of each. Fails on an index that comes twice.
std::map<std::int64_t, std::int64_t> elements_of(const std::vector<Box>& boxes) {
  std::map<std::int64_t, std::int64_t> elements;
  for (const Box& box : boxes) {
    for (std::int64_t n = 0; n < box.numel(); ++n) {
      std::int64_t rest = n;
      std::int64_t to = box.target_offset;
      std::int64_t from = box.source_offset;
      for (std::size_t i = box.loops.size(); i > 0; --i) {
        const Loop& loop = box.loops[i - 1];
        to += rest % loop.count * loop.target_stride;
        from += rest % loop.count * loop.source_stride;
        rest /= loop.count;
      }
      EXPECT_TRUE(elements.emplace(to, from).second) << "index " << to << " comes twice";
    }
  }
  return elements;
}

void check_clip(const RandomExpr& random, std::int64_t begin, std::int64_t end) {
  std::vector<Box> clipped;
  for (const Box& box : random.expr.boxes()) {
    std::map<std::int64_t, std::int64_t> expected = elements_of({box});
    std::erase_if(expected, [&](const auto& e) { return e.first < begin || e.first >= end; });
    const std::vector<Box> pieces = clip(box, begin, end);
    clipped.insert(clipped.end(), pieces.begin(), pieces.end());
    EXPECT_EQ(elements_of(pieces), expected);
    // A head and a tail for each loop, and what lies between.
    EXPECT_LE(pieces.size(), 2 * box.loops.size() + 1);
    std::int64_t last = -1;
    for (const Box& piece : pieces) {
      EXPECT_GT(piece.target_offset, last);
      last = piece.target_offset + target_span(piece.loops);
      EXPECT_EQ(piece.program, box.program);
      EXPECT_EQ(piece.source, box.source);
      for (const Loop& loop : piece.loops) EXPECT_GT(loop.count, 1);
    }
  }
  EXPECT_EQ(random.expr.boxes(begin, end), clipped);
}

// Everything that must hold for any expression.
void check(const Choose& choose) {
  const RandomCheckpoint checkpoint = random_checkpoint(choose);
  const RandomExpr random = random_expr(choose, checkpoint);
  SCOPED_TRACE(random.text);
  EXPECT_TRUE(dense_boxes(random.expr) == random.value);
  const std::int64_t numel = random.expr.numel();
  EXPECT_EQ(numel, static_cast<std::int64_t>(random.value.elements.size()));
  EXPECT_EQ(random.expr.reshape(std::vector{numel})->boxes(), random.expr.boxes());

  const std::int64_t from = choose(numel + 1) - choose(2);
  check_clip(random, from, from + choose(numel + 3));

  const auto rank = static_cast<std::int64_t>(random.value.shape.size());
  if (rank == 0 || numel == 0) return;
  const std::int64_t dim = choose(rank);
  const std::int64_t extent = random.value.shape[static_cast<std::size_t>(dim)];
  const std::int64_t begin = choose(extent);
  const std::int64_t step = 1 + choose(extent);
  const std::int64_t count = choose((extent - 1 - begin) / step + 2);
  const Result<TensorExpr> slice = random.expr.slice(dim, begin, count, step);
  ASSERT_TRUE(slice.has_value()) << slice.error().message();
  EXPECT_TRUE(dense_boxes(*slice) == dense_slice(random.value, dim, begin, count, step));

  const Result<std::vector<TensorExpr>> parts = random.expr.split(dim, extent);
  ASSERT_TRUE(parts.has_value()) << parts.error().message();
  const Result<TensorExpr> whole = TensorExpr::concat(*parts, dim);
  ASSERT_TRUE(whole.has_value()) << whole.error().message();
  EXPECT_TRUE(dense_boxes(*whole) == random.value);
}

// Shrinks to a small case ...
RC_GTEST_PROP(TensorExprProperty, BoxesAreTheValueOfTheOperations, ()) {
  const Choose choose = rapidcheck_choices();
  const RandomCheckpoint checkpoint = random_checkpoint(choose);
  const RandomExpr random = random_expr(choose, checkpoint);
  RC_LOG() << random.text << "\n";
  RC_ASSERT(dense_boxes(random.expr) == random.value);
}

// ... and many cases, which find what is rare.
TEST(TensorExprProperty, HoldsForManySeeds) {
  for (std::uint64_t seed = 0; seed < (kSanitized ? 600 : 2500) && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    check(seeded_choices(seed));
  }
}

// The generator itself: what the properties rely on does come up.
TEST(RandomExpr, ReachesAllKindsOfBoxes) {
  std::set<std::string> seen;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const Choose choose = seeded_choices(seed);
    const RandomCheckpoint checkpoint = random_checkpoint(choose);
    const RandomExpr random = random_expr(choose, checkpoint);
    if (random.expr.whole()) seen.insert("whole");
    if (random.expr.numel() == 0) seen.insert("empty");
    const std::vector<Box> boxes = random.expr.boxes();
    if (boxes.size() > 8) seen.insert("many boxes");
    for (const Box& box : boxes) {
      if (box.is_constant()) {
        seen.insert(box.source_offset == 0 ? "zeros" : "constant");
        continue;
      }
      const Storage& storage = checkpoint.catalog->storage(box.source);
      if (!storage.encoding->is_plain()) seen.insert("encoded");
      if (storage.extents.size() > 1) seen.insert("several extents");
      if (box.program && box.program->size() > 1) seen.insert("several steps");
      if (box.loops.size() > 3) seen.insert("four loops");
      for (const Loop& loop : box.loops) {
        if (loop.source_stride < 0) seen.insert("backwards");
        if (loop.source_stride == 0) seen.insert("repeated");
      }
    }
  }
  EXPECT_EQ(seen, (std::set<std::string>{"whole", "empty", "many boxes", "constant", "zeros",
                                         "encoded", "several extents", "several steps",
                                         "four loops", "backwards", "repeated"}));
}

// The model's two ways to the bytes of a tensor: by boxes, and by the dense list.
RC_GTEST_PROP(NaiveView, AgreesWithTheDenseList, ()) {
  const Choose choose = rapidcheck_choices();
  const RandomCheckpoint checkpoint = random_checkpoint(choose);
  const RandomExpr random = random_expr(choose, checkpoint, 3);
  std::vector<Element> expected;
  std::map<StorageId, std::vector<Element>> storages;
  for (const Origin& origin : random.value.elements) {
    if (origin.storage == Box::kConstant) {
      expected.push_back({.low = static_cast<std::uint64_t>(origin.index)});
      continue;
    }
    if (!storages.contains(origin.storage)) {
      storages[origin.storage] =
          naive_storage(*checkpoint.catalog, *checkpoint.source, origin.storage).value();
    }
    const DType dtype = checkpoint.catalog->storage(origin.storage).value_dtype();
    expected.push_back(
        naive_steps(storages[origin.storage].at(static_cast<std::size_t>(origin.index)), dtype,
                    origin.program));
  }
  const Result<std::vector<std::byte>> bytes =
      naive_tensor(*checkpoint.catalog, *checkpoint.source, random.expr);
  RC_ASSERT(bytes.has_value());
  RC_ASSERT(*bytes == naive_bytes(expected, random.value.dtype));
  RC_ASSERT(bytes->size() == random.expr.nbytes());
}

}  // namespace
}  // namespace ckfs
