#include "catalog/chunk_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckfs {
namespace {

// One file may be all shards of a database: it costs a key to name it once more.
TEST(ChunkTable, ShardsOfMoreChunksThanThereAreNumbersAreRefused) {
  ChunkTable table;
  const ChunkArrayId array = table.add_array({.name = "a", .nbytes = 1});
  const ShardIndex index{.count = std::uint64_t{1} << 24};
  const FileRange shard{0, 0, index.nbytes()};
  std::optional<Error> error;
  for (std::uint64_t cell = 0; cell < 200 && !error; ++cell) {
    const auto added = table.add_shard(array, cell, shard, index);
    if (!added) error = added.error();
  }
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::Unsupported);
  EXPECT_THAT(error->message(),
              testing::HasSubstr("a: 2147483776 chunks with those before them: too many"));
  // What is there stays as it is.
  EXPECT_EQ(table.describe(kFirstChunkFile + 1), "a: shard 0, inner chunk 0");
}

TEST(ChunkTable, ThatIsFullByShardsTakesNoOtherChunkEither) {
  ChunkTable table;
  const ChunkArrayId array = table.add_array({.name = "a", .nbytes = 1});
  const auto fill = [&](std::uint64_t count) {
    const ShardIndex index{.count = count};
    EXPECT_TRUE(table.add_shard(array, 0, {0, 0, index.nbytes()}, index));
  };
  constexpr std::uint64_t kMost = std::uint64_t{1} << 24;
  for (int i = 0; i < 127; ++i) fill(kMost);
  fill((std::uint64_t{1} << 31) - 2 - table.count());
  const std::byte byte{1};
  for (const auto& added : {table.add_stored(array, 0, {0, 0, 1}),
                            table.add_inline(array, 0, {&byte, 1}), table.add_absent(array)}) {
    ASSERT_FALSE(added);
    EXPECT_EQ(added.error().code(), ErrorCode::Unsupported);
    EXPECT_EQ(added.error().message(),
              "a: 2147483648 chunks with those before them: too many (limit 2^31)");
  }
  EXPECT_EQ(table.describe(kFirstChunkFile + 1), "a: shard 0, inner chunk 0");
}

}  // namespace
}  // namespace ckfs
