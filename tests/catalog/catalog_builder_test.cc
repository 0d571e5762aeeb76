#include <array>
#include <gtest/gtest.h>

#include "catalog/catalog.h"
#include "encoding/block_scale_encoding.h"

namespace ckfs {
namespace {

TEST(CatalogBuilder, TakesNoCompanionWithoutAllThatTheLastValueNeeds) {
  const auto add = [](std::int64_t scales) {
    CatalogBuilder builder("test");
    const Extent codes{0, 0, 8 * 16};
    const Extent scale{0, 8 * 16, static_cast<std::uint64_t>(scales) * 4};
    const std::array ids = {
        builder.add_storage(DType::F8E4M3, 8 * 16, std::span(&codes, 1)),
        builder.add_storage(DType::F32, scales, std::span(&scale, 1)),
    };
    const BlockScale kind{.rows = 8, .columns = 16, .block_rows = 4, .block_columns = 8};
    builder.set_encoding(ids[0], block_scale_encoding(kind), std::span(&ids[1], 1), 8 * 16);
    return ids[1];
  };
  EXPECT_EQ(add(4), 1U);
  EXPECT_DEATH((void)add(3), "broken invariant: need.range.end <= part.nbytes");
}

TEST(CatalogBuilder, SaysOfAStorageWhetherAnyOfItLiesInChunks) {
  CatalogBuilder builder("test");
  const std::array extents = {Extent{0, 0, 8}, Extent{kFirstChunkFile, 0, 8}};
  const StorageId part = builder.add_storage(DType::F32, 2, std::span(extents).first(1));
  const StorageId both = builder.add_storage(DType::F32, 4, extents);
  const auto catalog = std::move(builder).build();
  EXPECT_FALSE(catalog->storage(part).in_chunks);
  EXPECT_TRUE(catalog->storage(both).in_chunks);
}

}  // namespace
}  // namespace ckfs
