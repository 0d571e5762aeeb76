#include "tensor/dtype.h"

#include <gtest/gtest.h>
#include <limits>

namespace ckfs {
namespace {

TEST(DType, NamesAndBitsAreThoseOfSafetensors) {
  struct Row {
    std::string_view name;
    int bits;
  };
  // safetensors/src/tensor.rs, in the order of its enum.
  constexpr Row kExpected[] = {
      {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
      {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
      {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
      {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
      {"I64", 64},        {"U64", 64}};
  for (int i = 0; i < static_cast<int>(std::size(kExpected)); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(name(dtype), kExpected[i].name);
    EXPECT_EQ(bits(dtype), kExpected[i].bits) << kExpected[i].name;
    EXPECT_EQ(parse_dtype(kExpected[i].name), dtype);
  }
  EXPECT_EQ(std::size(kExpected) + 1, static_cast<std::size_t>(kDTypeCount));
}

TEST(DType, ComplexOf128BitsHasANameThatNoHeaderMayUse) {
  EXPECT_EQ(name(DType::C128), "C128");
  EXPECT_EQ(bits(DType::C128), 128);
  EXPECT_EQ(parse_dtype("C128"), std::nullopt);
}

TEST(DType, UnknownNamesAreNotParsed) {
  for (std::string_view text : {"", "bf16", "BF16 ", "F128", "F8_E4M3FN", "F8"}) {
    EXPECT_EQ(parse_dtype(text), std::nullopt) << text;
  }
}

TEST(DType, OnlyFourFloatsAreCast) {
  int castable = 0;
  for (int i = 0; i < kDTypeCount; ++i) castable += is_castable_float(static_cast<DType>(i));
  EXPECT_EQ(castable, 4);
  for (DType dtype : {DType::F64, DType::F32, DType::F16, DType::BF16}) {
    EXPECT_TRUE(is_castable_float(dtype)) << name(dtype);
  }
}

TEST(DType, NbytesCountsPackedElementsInWholeBytes) {
  EXPECT_EQ(nbytes(DType::F4, 6), 3);
  EXPECT_EQ(nbytes(DType::F4, 5), std::nullopt);
  EXPECT_EQ(nbytes(DType::F6E2M3, 4), 3);
  EXPECT_EQ(nbytes(DType::F6E3M2, 3), std::nullopt);
  EXPECT_EQ(nbytes(DType::BF16, 7), 14);
  EXPECT_EQ(nbytes(DType::C128, 2), 32);
  EXPECT_EQ(nbytes(DType::Bool, 0), 0);
}

TEST(DType, NbytesRefusesWhatDoesNotFit) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(nbytes(DType::U8, -1), std::nullopt);
  EXPECT_EQ(nbytes(DType::F64, kMost), std::nullopt);
  EXPECT_EQ(nbytes(DType::U8, kMost / 8), static_cast<std::uint64_t>(kMost / 8));
}

}  // namespace
}  // namespace ckfs
