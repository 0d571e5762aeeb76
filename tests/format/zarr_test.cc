#include "format/zarr.h"

#include <array>
#include <gtest/gtest.h>

namespace ckfs::zarr {
namespace {

constexpr std::array<std::int64_t, 2> kShape{2, 4};
constexpr std::array<std::int64_t, 2> kChunk{2, 2};
constexpr std::array<std::int64_t, 2> kTurned{1, 0};

TEST(ZarrMetadata, NamesGridCodecsAndDtypeInVersion3) {
  EXPECT_EQ(
      render_metadata(Version::V3, {DType::BF16, kShape, kChunk, {}}),
      R"({"chunk_grid":{"configuration":{"chunk_shape":[2,2]},"name":"regular"},"chunk_key_encoding":{"name":"default"},"codecs":[{"configuration":{"endian":"little"},"name":"bytes"}],"data_type":"bfloat16","fill_value":0.0,"node_type":"array","shape":[2,4],"zarr_format":3})");
  EXPECT_EQ(
      render_metadata(Version::V3, {DType::Bool, kShape, kChunk, kTurned}),
      R"({"chunk_grid":{"configuration":{"chunk_shape":[2,2]},"name":"regular"},"chunk_key_encoding":{"name":"default"},"codecs":[{"configuration":{"order":[1,0]},"name":"transpose"},{"name":"bytes"}],"data_type":"bool","fill_value":false,"node_type":"array","shape":[2,4],"zarr_format":3})");
}

TEST(ZarrMetadata, HasTheMembersThatTensorStoreWritesInVersion2) {
  EXPECT_EQ(
      render_metadata(Version::V2, {DType::I32, kShape, kChunk, {}}),
      R"({"chunks":[2,2],"compressor":null,"dimension_separator":".","dtype":"<i4","fill_value":null,"filters":null,"order":"C","shape":[2,4],"zarr_format":2})");
  EXPECT_EQ(
      render_metadata(Version::V2, {DType::BF16, {}, {}, {}}),
      R"({"chunks":[],"compressor":null,"dimension_separator":".","dtype":"bfloat16","fill_value":null,"filters":null,"order":"C","shape":[],"zarr_format":2})");
  EXPECT_NE(render_metadata(Version::V2, {DType::BF16, kShape, kChunk, kTurned}).find("\"F\""),
            std::string::npos);
}

TEST(ZarrChunk, IsNamedByItsIndex) {
  constexpr std::array<std::int64_t, 3> kIndex{0, 12, 7};
  EXPECT_EQ(chunk_name(Version::V3, kIndex), "c/0/12/7");
  EXPECT_EQ(chunk_name(Version::V3, {}), "c");
  EXPECT_EQ(chunk_name(Version::V2, kIndex), "0.12.7");
  EXPECT_EQ(chunk_name(Version::V2, {}), "0");
}

TEST(ZarrDtype, HasWholeBytes) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(can_hold(dtype), bits(dtype) % 8 == 0) << name(dtype);
  }
}

}  // namespace
}  // namespace ckfs::zarr
