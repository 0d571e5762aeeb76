// What a look at a part of a tensor costs, in boxes and extents that are visited, not in time.
#include "expr/reach_index.h"

#include <algorithm>
#include <array>
#include <gtest/gtest.h>
#include <random>
#include <set>

#include "catalog/catalog.h"
#include "expr/tensor_expr.h"

namespace ckfs {
namespace {

TEST(ReachIndex, FindsEveryIntervalThatMeetsTheRange) {
  std::mt19937_64 random(3);
  for (const std::size_t count : {1U, 15U, 16U, 17U, 256U, 257U, 5000U}) {
    std::vector<std::int64_t> last(count);
    for (std::size_t i = 0; i < count; ++i) {
      last[i] = static_cast<std::int64_t>(i + (random() % 50 == 0 ? random() % count : 0));
    }
    const ReachIndex index(count, [&](std::size_t i) { return last[i]; });
    for (int k = 0; k < 200; ++k) {
      const auto begin = static_cast<std::int64_t>(random() % (count + 5));
      const std::size_t before = random() % (count + 1);
      std::vector<std::size_t> seen;
      index.for_each(begin, before, [&](std::size_t i) { seen.push_back(i); });
      EXPECT_TRUE(std::ranges::is_sorted(seen));
      EXPECT_TRUE(seen.empty() || seen.back() < before);
      for (std::size_t i = 0; i < before; ++i) {
        if (last[i] < begin) continue;
        EXPECT_TRUE(std::ranges::binary_search(seen, i));
      }
    }
  }
}

/// [boxes, 2] where row r is a box of its own: 25,000 pieces of a storage.
TensorExpr rows_apart(std::shared_ptr<const Catalog>& catalog, std::int64_t count) {
  CatalogBuilder builder("test");
  const Extent extent{0, 0, static_cast<std::uint64_t>(count) * 12};
  const StorageId storage = builder.add_storage(DType::F32, count * 3, std::span(&extent, 1));
  std::vector<StorageBox> boxes;
  for (std::int64_t r = 0; r < count; ++r) {
    // Backwards, so that no two boxes join to one.
    boxes.push_back({storage, (count - 1 - r) * 3 + (r % 3 == 0 ? 1 : 0), {r, 0}, {1, 2}, {2, 1}});
  }
  const std::int64_t shape[] = {count, 2};
  builder.add_tensor("w", shape, storage, std::move(boxes));
  catalog = std::move(builder).build();
  return TensorExpr::stored(*catalog, 0);
}

TEST(TensorExpr, VisitsAFewOfTwentyFiveThousandBoxes) {
  std::shared_ptr<const Catalog> catalog;
  const TensorExpr expr = rows_apart(catalog, 25000);
  EXPECT_GT(expr.box_list().size(), 10000U);
  for (const std::int64_t begin : {0, 12345, 49990}) {
    EXPECT_EQ(expr.boxes(begin, begin + 1).size(), 1U);
    EXPECT_LE(expr.visits(begin, begin + 1), 80U);  // 4 levels of 16
  }
  // With a box before all others that reaches to the end of the tensor.
  const TensorExpr far = TensorExpr::interleave(std::array{expr, expr}, 1).value();
  const std::int64_t end = far.numel();
  EXPECT_LE(far.visits(end - 4, end), 200U);
}

TEST(TensorExpr, OneBoxThatReachesFarMakesNoOtherVisited) {
  CatalogBuilder builder("test");
  const Extent extent{0, 0, 4 * 100000};
  const StorageId storage = builder.add_storage(DType::F32, 100000, std::span(&extent, 1));
  // Column 0 of [20000, 3] is one box; the rest of each row is a box of its own, backwards.
  std::vector<StorageBox> boxes{{storage, 0, {0, 0}, {20000, 1}, {1, 1}}};
  for (std::int64_t r = 0; r < 20000; ++r) {
    boxes.push_back({storage, 99998 - 3 * r - r % 2, {r, 1}, {1, 2}, {2, 1}});
  }
  const std::int64_t shape[] = {20000, 3};
  builder.add_tensor("w", shape, storage, std::move(boxes));
  const auto catalog = std::move(builder).build();
  const TensorExpr expr = TensorExpr::stored(*catalog, 0);
  EXPECT_LE(expr.visits(59997, 60000), 120U);
  EXPECT_EQ(expr.boxes(59997, 60000).size(), 2U);
  EXPECT_EQ(expr.shortest_run(), 1);
}

TEST(Storage, FindsTheExtentsOfARangeAmongAThousand) {
  CatalogBuilder builder("test");
  std::vector<Extent> extents;
  for (FileId file = 0; file < 1024; ++file) extents.push_back({file, 100, 40});
  const StorageId id = builder.add_storage(DType::F32, 1024 * 10, extents);
  const Storage& storage = builder.storage(id);
  EXPECT_EQ(storage.nbytes(), 1024U * 40);
  const auto files = [&](ByteRange range) {
    std::vector<FileId> found;
    for (const Extent& extent : storage.extents_in(range)) found.push_back(extent.file);
    return found;
  };
  EXPECT_EQ(files({0, 1}), std::vector<FileId>{0});
  EXPECT_EQ(files({39, 41}), (std::vector<FileId>{0, 1}));
  EXPECT_EQ(files({40, 80}), std::vector<FileId>{1});
  EXPECT_EQ(files({40959, 40960}), std::vector<FileId>{1023});
  EXPECT_EQ(files({40000, 40121}), (std::vector<FileId>{1000, 1001, 1002, 1003}));
  EXPECT_EQ(files({77, 77}), std::vector<FileId>{});
}

}  // namespace
}  // namespace ckfs
