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

}  // namespace
}  // namespace ckfs
