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
  EXPECT_THAT(error->message(), testing::HasSubstr("a: shard 127 of 16777216 chunks: too many"));
  // What is there stays as it is.
  EXPECT_EQ(table.describe(kFirstChunkFile + 1), "a: shard 0, inner chunk 0");
}

}  // namespace
}  // namespace ckfs
