// Batches of a gather against the reference model (support/naive_view.h): in any order, with any
// staging, each with a buffer of its own.
#include "engine/gather.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
#include <optional>
#include <random>
#include <rapidcheck/gtest.h>

#include "base/units.h"
#include "encoding/block_scale_encoding.h"
#include "support/gather_all.h"
#include "support/memory_source.h"
#include "support/naive_view.h"
#include "support/random_expr.h"
#include "support/sanitized.h"
#include "support/test_encodings.h"

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

/// Any range of any expression over any encodings, with little staging and with more.
void check_gather(const Choose& choose) {
  const RandomCheckpoint checkpoint = random_checkpoint(choose);
  const RandomExpr random = random_expr(choose, checkpoint);
  SCOPED_TRACE(random.text);
  const std::int64_t numel = random.expr.numel();
  if (numel == 0) return;
  const std::vector<std::byte> whole =
      naive_tensor(*checkpoint.catalog, *checkpoint.source, random.expr).value();
  const std::size_t width = whole.size() / static_cast<std::size_t>(numel);
  const std::int64_t begin = choose(numel);
  const std::int64_t end = begin + 1 + choose(numel - begin);
  const std::vector<std::byte> expected(whole.begin() + begin * static_cast<long>(width),
                                        whole.begin() + end * static_cast<long>(width));
  const std::size_t least = least_staging(*checkpoint.catalog);
  for (const std::size_t staging : {least, least + 1000, std::size_t{256_KiB}}) {
    if (staging < least) continue;
    const GatherPlan plan = GatherPlan::make(*checkpoint.catalog, random.expr, begin, end, staging);
    EXPECT_LE(plan.staging(), staging);
    EXPECT_EQ(run_shuffled(plan, *checkpoint.source, expected.size(), 1), expected);
  }
  // From where it lies, too.
  checkpoint.source->allow_mapping();
  const GatherPlan plan =
      GatherPlan::make(*checkpoint.catalog, random.expr, begin, end, least + 1000);
  EXPECT_EQ(run_shuffled(plan, *checkpoint.source, expected.size(), 1), expected);
}

// Shrinks to a small case ...
RC_GTEST_PROP(GatherPlanProperty, GivesTheBytesOfTheModel, ()) {
  check_gather(rapidcheck_choices());
  RC_ASSERT(!testing::Test::HasFailure());
}

// ... and many cases, which find what is rare.
TEST(GatherPlanProperty, HoldsForManySeeds) {
  for (std::uint64_t seed = 0; seed < (kSanitized ? 800 : 3000) && !testing::Test::HasFailure();
       ++seed) {
    SCOPED_TRACE(seed);
    check_gather(seeded_choices(seed));
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
        GatherPlan::make(*checkpoint.catalog, random.expr, 0, random.expr.numel(), 256_KiB);
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

/// One storage of an encoding under its test's control, in two extents, with companions in files of
/// their own: file 0 is the storage's.
class Encoded {
 public:
  Encoded(const TestEncoding& test, std::int64_t rows, std::int64_t columns) {
    std::mt19937_64 random(1);
    const auto add = [&](std::uint64_t size) {
      std::vector<std::byte> bytes(size);
      // Small numbers: look-ups are right, and no float is a NaN.
      for (std::byte& byte : bytes) byte = std::byte(random() % 2);
      const FileId file = source.add(fmt::format("file-{}", source.count()), std::move(bytes));
      const std::uint64_t half = size / 2;
      const Extent extents[] = {{file, 0, half}, {file, half, size - half}};
      return builder.add_storage(DType::U8, static_cast<std::int64_t>(size), extents);
    };
    const StorageId storage = add(test.encoding->nbytes(rows * columns).value());
    std::vector<StorageId> companions;
    for (const std::uint64_t size : test.companions) companions.push_back(add(size));
    builder.set_encoding(storage, test.encoding, companions, rows * columns);
    const std::int64_t shape[] = {rows, columns};
    builder.add_tensor("w", shape, storage);
    catalog = std::move(builder).build();
    expr = TensorExpr::stored(*catalog, 0);
  }

  /// Gathers all of `view`, which must be what the model says.
  void gather_all(const TensorExpr& view, std::size_t staging_bytes) {
    const auto expected = naive_tensor(*catalog, source, view).value();
    source.reset_counts();
    std::vector<std::byte> out(view.nbytes());
    std::vector<std::byte> staging(staging_bytes);
    ASSERT_TRUE(gather(*catalog, source, view, 0, view.numel(), out, staging, KernelSet::Fast));
    EXPECT_EQ(out, expected);
  }

  MemorySource source;
  CatalogBuilder builder{"test"};
  std::shared_ptr<const Catalog> catalog;
  std::optional<TensorExpr> expr;
};

TEST(Gather, ReadsWordsThatRowsShareOnce) {
  Encoded matrix(act_order(64, 500, 2), 64, 500);
  const std::int64_t order[] = {1, 0};
  // Room for ten rows of 500 F16 and their words: runs must be cut at multiples of eight rows.
  matrix.gather_all(matrix.expr->transpose(order).value(), 24_KiB);
  EXPECT_EQ(matrix.source.bytes_read(0), 64U / 8 * 500 * 4);
}

TEST(Gather, ReadsGranulesOnceThatItsRunsCut) {
  // A row is 500 elements, 15 granules and 20 elements; the staging takes some rows.
  Encoded matrix(scale_inside(), 64, 500);
  const std::int64_t order[] = {1, 0};
  matrix.gather_all(matrix.expr->transpose(order).value(), 20_KiB);
  EXPECT_EQ(matrix.source.bytes_read(0), 64U * 500 / 32 * 34);
}

TEST(Gather, ReadsACompanionOncePerBatch) {
  // A panel of the first 4 columns: 1,024 runs of 4 elements with 8 scales between them.
  Encoded matrix({block_scale_encoding(
                      {.rows = 1024, .columns = 8192, .block_rows = 128, .block_columns = 128}),
                  {8 * 64 * 4}},
                 1024, 8192);
  const std::int64_t order[] = {1, 0};
  const TensorExpr view = matrix.expr->transpose(order).value();
  matrix.source.reset_counts();
  std::vector<std::byte> out(4 * 1024 * 4);
  std::vector<std::byte> staging(1_MiB);
  ASSERT_TRUE(
      gather(*matrix.catalog, matrix.source, view, 0, 4 * 1024, out, staging, KernelSet::Fast));
  EXPECT_EQ(matrix.source.bytes_read(1), 8U * 4);
  EXPECT_EQ(matrix.source.bytes_read(0), 4U * 1024);
}

TEST(Gather, ReportsACompanionThatContradictsItself) {
  Encoded matrix(act_order(16, 8, 1, true), 16, 8);  // some look-up is 1 or more
  std::vector<std::byte> out(matrix.expr->nbytes());
  std::vector<std::byte> staging(least_staging(*matrix.catalog));
  const auto failed =
      gather(*matrix.catalog, matrix.source, *matrix.expr, 0, 128, out, staging, KernelSet::Fast);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::Corrupt);
  EXPECT_TRUE(failed.error().message().starts_with("file-0: g_idx[")) << failed.error().message();
}

}  // namespace
}  // namespace ckfs
