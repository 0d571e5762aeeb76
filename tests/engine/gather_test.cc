// Batches of a gather against the reference model (support/naive_view.h): in any order, with any
// staging, each with a buffer of its own.
#include "engine/gather.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

#include "base/units.h"
#include "engine/read_plan.h"
#include "support/memory_source.h"
#include "support/naive_view.h"
#include "support/random_expr.h"

namespace ckfs {
namespace {

/// Runs all batches in a shuffled order, each with a staging of exactly what the plan says.
std::vector<std::byte> run_shuffled(const GatherPlan& plan, ByteSource& source, std::size_t size,
                                    std::uint64_t seed) {
  std::vector<std::byte> out(size, std::byte{0xAA});
  std::vector<std::size_t> order(plan.batches());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  for (const std::size_t batch : order) {
    std::vector<std::byte> staging(plan.staging(), std::byte{0xBB});
    EXPECT_TRUE(plan.run(batch, source, staging, out, KernelSet::Fast));
  }
  return out;
}

TEST(GatherPlan, BatchesInAnyOrderGiveTheBytesOfTheModel) {
  for (std::uint64_t seed = 0; seed < 1500 && !testing::Test::HasFailure(); ++seed) {
    const Choose choose = seeded_choices(seed);
    const RandomCheckpoint checkpoint = random_checkpoint(choose);
    const RandomExpr random = random_expr(choose, checkpoint);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, random.text));
    const std::int64_t numel = random.expr.numel();
    if (numel == 0) continue;
    const std::vector<std::byte> whole =
        naive_tensor(*checkpoint.catalog, *checkpoint.source, random.expr).value();
    const std::size_t width = whole.size() / static_cast<std::size_t>(numel);
    const std::int64_t begin = choose(numel);
    const std::int64_t end = begin + 1 + choose(numel - begin);
    const std::vector<std::byte> expected(whole.begin() + begin * static_cast<long>(width),
                                          whole.begin() + end * static_cast<long>(width));
    const std::size_t least = least_staging(*checkpoint.catalog);
    for (const std::size_t staging : {least, least + 1000, std::size_t{64_KiB}}) {
      const GatherPlan plan =
          GatherPlan::make(*checkpoint.catalog, random.expr, begin, end, staging);
      EXPECT_LE(plan.staging(), staging);
      EXPECT_EQ(run_shuffled(plan, *checkpoint.source, expected.size(), seed), expected);
    }
  }
}

/// A plain matrix of BF16 in one file, and its transposition.
class Transposed {
 public:
  Transposed(std::int64_t rows, std::int64_t columns) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(rows * columns) * 2);
    std::mt19937_64 random(1);
    for (std::byte& byte : bytes) byte = std::byte(random());
    CatalogBuilder builder("test");
    const Extent extent{source.add("matrix", bytes), 0, bytes.size()};
    const std::int64_t shape[] = {rows, columns};
    builder.add_tensor("w", shape,
                       builder.add_storage(DType::BF16, rows * columns, std::span(&extent, 1)));
    catalog = std::move(builder).build();
    const std::int64_t order[] = {1, 0};
    expr = TensorExpr::stored(*catalog, 0).transpose(order).value();
  }

  MemorySource source;
  std::shared_ptr<const Catalog> catalog;
  std::optional<TensorExpr> expr;
};

TEST(GatherPlan, ReadsEachSourceByteInOneBatchAndInOrder) {
  // A prime number of rows: what fits in a staging does not divide it.
  Transposed matrix(1021, 700);
  for (const std::size_t staging : {64_KiB, 1_MiB}) {
    const GatherPlan plan = GatherPlan::make(*matrix.catalog, *matrix.expr, 0, 1021 * 700, staging);
    EXPECT_GE(plan.batches(), 1021 * 700 * 2 / staging);
    EXPECT_LE(plan.batches(), 1021 * 700 * 2 / staging + 3);
    matrix.source.reset_counts();
    std::uint64_t at = 0;
    for (std::size_t batch = 0; batch < plan.batches(); ++batch) {
      const std::vector<FileRange> ranges = plan.ranges(batch);
      ASSERT_EQ(ranges.size(), 1U);
      EXPECT_EQ(ranges[0].offset, at);
      at += ranges[0].size;
    }
    EXPECT_EQ(at, 1021U * 700 * 2);
    EXPECT_EQ(run_shuffled(plan, matrix.source, 1021 * 700 * 2, 7),
              naive_tensor(*matrix.catalog, matrix.source, *matrix.expr).value());
  }
}

TEST(GatherPlan, SaysBeforehandWhatItReads) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Choose choose = seeded_choices(seed);
    const RandomCheckpoint checkpoint = random_checkpoint(choose);
    const RandomExpr random = random_expr(choose, checkpoint);
    const GatherPlan plan =
        GatherPlan::make(*checkpoint.catalog, random.expr, 0, random.expr.numel(), 64_KiB);
    std::vector<std::byte> out(random.expr.nbytes());
    std::vector<std::byte> staging(plan.staging());
    for (std::size_t batch = 0; batch < plan.batches(); ++batch) {
      checkpoint.source->reset_counts();
      const auto files = plan.run(batch, *checkpoint.source, staging, out, KernelSet::Fast);
      ASSERT_TRUE(files);
      const std::vector<FileRange> ranges = plan.ranges(batch);
      for (FileId file = 0; file < checkpoint.source->count(); ++file) {
        const std::vector<ByteRange> read = checkpoint.source->ranges_read(file);
        EXPECT_EQ(std::ranges::find(*files, file) != files->end(), !read.empty());
        for (const ByteRange& piece : read) {
          EXPECT_TRUE(std::ranges::any_of(ranges, [&](const FileRange& range) {
            return range.file == file &&
                   ByteRange{range.offset, range.offset + range.size}.contains(piece);
          })) << random.text;
        }
      }
    }
  }
}

TEST(GatherPlan, HoldsNothingForEachRun) {
  // A panel of one element from each of 300,000 rows of 12,000 bytes: as many runs.
  CatalogBuilder builder("test");
  const Extent extent{0, 0, std::uint64_t{300000} * 12000};
  const std::int64_t shape[] = {300000, 6000};
  builder.add_tensor("w", shape,
                     builder.add_storage(DType::BF16, 300000 * 6000, std::span(&extent, 1)));
  const auto catalog = std::move(builder).build();
  const std::int64_t order[] = {1, 0};
  const TensorExpr expr = TensorExpr::stored(*catalog, 0).transpose(order).value();
  const GatherPlan plan = GatherPlan::make(*catalog, expr, 300000, 600000, 1_MiB);
  EXPECT_EQ(plan.batches(), 300000 / 4096 + 1U);
  EXPECT_EQ(plan.ranges(0).front().offset, 2U);
}

}  // namespace
}  // namespace ckfs
