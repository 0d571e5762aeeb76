// What runs need together, and any bytes of their results.
#include "engine/run_decoder.h"

#include <gtest/gtest.h>
#include <map>
#include <random>

#include "encoding/block_scale_encoding.h"
#include "engine/source_ranges.h"
#include "support/memory_source.h"
#include "support/random_expr.h"

namespace ckfs {
namespace {

/// The result of `run`, read and decoded by itself.
std::vector<std::byte> decoded_alone(const Catalog& catalog, ByteSource& source,
                                     const ElementRun& run) {
  const RunReads reads(catalog, std::span(&run, 1));
  std::vector<std::byte> staging(reads.staging());
  SourceBytes bytes(source);
  RunDecoder decoder(reads, bytes, staging, KernelSet::Reference);
  EXPECT_TRUE(bytes.fetch());
  const DType dtype = result_dtype(catalog.storage(run.storage).value_dtype(), run.program);
  std::vector<std::byte> out(bytes_of(dtype, run.count));
  EXPECT_TRUE(decoder.decode(run, 0, out));
  return out;
}

TEST(RunDecoder, GivesAnyBytesOfAnyRunsThatWereReadTogether) {
  for (std::uint64_t seed = 0; seed < 400 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const Choose choose = seeded_choices(seed);
    const RandomCheckpoint checkpoint = random_checkpoint(choose);
    const Catalog& catalog = *checkpoint.catalog;
    const Program halves{{Step::Kind::Cast, DType::F32, 0},
                         {Step::Kind::Multiply, DType::F32, 0.5},
                         {Step::Kind::Cast, DType::BF16, 0}};
    std::map<DType, Program> there_and_back;
    for (const DType dtype : {DType::BF16, DType::F16, DType::F32, DType::F64}) {
      const DType wide = choose(2) == 0 ? DType::F32 : DType::F64;
      there_and_back[dtype] = {{Step::Kind::Cast, wide, 0}, {Step::Kind::Cast, dtype, 0}};
    }
    std::vector<ElementRun> runs;
    while (runs.size() < 12) {
      const auto id =
          static_cast<StorageId>(choose(static_cast<std::int64_t>(catalog.storages().size())));
      const Storage& storage = catalog.storage(id);
      if (storage.numel == 0) {
        runs.push_back({id, 0, 0, nullptr});
        continue;
      }
      const std::int64_t first = choose(storage.numel);
      const Program* program = nullptr;
      if (is_castable_float(storage.value_dtype()) && choose(3) != 0) {
        program = choose(2) == 0 ? &halves : &there_and_back[storage.value_dtype()];
      }
      runs.push_back({id, first, 1 + choose(storage.numel - first), program});
    }
    const RunReads reads(catalog, runs);
    std::vector<std::byte> staging(reads.staging());
    SourceBytes bytes(*checkpoint.source);
    RunDecoder decoder(reads, bytes, staging, KernelSet::Fast);
    ASSERT_TRUE(bytes.fetch());
    for (const ElementRun& run : runs) {
      if (run.count == 0) continue;
      const std::vector<std::byte> all = decoded_alone(catalog, *checkpoint.source, run);
      const auto skip = static_cast<std::size_t>(choose(static_cast<std::int64_t>(all.size())));
      std::vector<std::byte> part(
          static_cast<std::size_t>(choose(static_cast<std::int64_t>(all.size() - skip))) + 1);
      ASSERT_TRUE(decoder.decode(run, skip, part));
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + static_cast<long>(skip)));
    }
  }
}

TEST(RunReads, NeedNoMoreThanTheBound) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const Choose choose = seeded_choices(seed);
    const RandomCheckpoint checkpoint = random_checkpoint(choose);
    const Catalog& catalog = *checkpoint.catalog;
    for (StorageId id = 0; id < catalog.storages().size(); ++id) {
      const std::int64_t numel = catalog.storage(id).numel;
      if (numel == 0) continue;
      const std::int64_t count = 1 + choose(std::min<std::int64_t>(numel, 50));
      std::vector<ElementRun> runs;
      for (std::int64_t k = 1 + choose(9); k > 0; --k) {
        runs.push_back({id, choose(numel - count + 1), count, nullptr});
      }
      EXPECT_LE(RunReads(catalog, runs).staging(),
                RunReads::most_staging(catalog, id, count, static_cast<std::int64_t>(runs.size())));
    }
  }
}

TEST(RunReads, ReadOnceWhatRunsShare) {
  MemorySource source;
  source.add("weights", std::vector<std::byte>(512 * 1024));
  source.add("scales", std::vector<std::byte>(4 * 8 * 4));
  CatalogBuilder builder("test");
  const Extent extents[] = {{0, 0, 512 * 1024}, {1, 0, 4 * 8 * 4}};
  const StorageId weight = builder.add_storage(DType::F8E4M3, 512 * 1024, std::span(extents, 1));
  const StorageId scale = builder.add_storage(DType::F32, 32, std::span(extents + 1, 1));
  builder.set_encoding(
      weight,
      block_scale_encoding({.rows = 512, .columns = 1024, .block_rows = 128, .block_columns = 128}),
      std::span(&scale, 1), 512 * 1024);
  const auto catalog = std::move(builder).build();
  std::vector<ElementRun> runs;  // a few elements of each of the first 200 rows
  for (std::int64_t row = 0; row < 200; ++row) runs.push_back({weight, row * 1024, 5, nullptr});
  std::vector<FileRange> ranges;
  RunReads(*catalog, runs).add_ranges(ranges);
  std::uint64_t scales = 0;
  for (const FileRange& range : ranges) scales += range.file == 1 ? range.size : 0;
  EXPECT_EQ(scales, 2U * 4);  // of two rows of blocks the first scale
}

}  // namespace
}  // namespace ckfs
