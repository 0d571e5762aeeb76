// What encodings say of themselves: the promises of encoding/encoding.h, for those of ckfs and for
// those of support/test_encodings.h.
#include "encoding/encoding.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <set>

#include "encoding/affine_codes_encoding.h"
#include "encoding/block_scale_encoding.h"
#include "encoding/plain_encoding.h"
#include "encoding/row_int8_encoding.h"
#include "encoding/table_codes_encoding.h"
#include "support/test_encodings.h"

namespace ckfs {
namespace {

struct Case {
  std::string name;
  std::shared_ptr<const Encoding> encoding;
  std::int64_t numel;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype : {DType::F4, DType::F6E2M3, DType::U8, DType::BF16, DType::C128}) {
    all.push_back(
        {std::string(name(dtype)), {&plain_encoding(dtype), [](const Encoding*) {}}, 480});
  }
  for (const std::int64_t block : {1, 3, 7, 128}) {
    all.push_back({"blocks",
                   block_scale_encoding({.scale = DType::BF16,
                                         .rows = 10,
                                         .columns = 7,
                                         .block_rows = block,
                                         .block_columns = 3}),
                   4 * 10 * 7});
  }
  all.push_back({"scale inside", scale_inside().encoding, 333});
  all.push_back({"packed odd", packed_odd(1000, 37, DType::F16).encoding, 1000});
  all.push_back({"act order", act_order(29, 13, 3).encoding, 29 * 13});
  for (const std::int64_t nested : {0, 3}) {
    all.push_back({"table", table_codes_encoding({.block = 10, .nested_block = nested}), 777});
  }
  all.push_back({"row int8", row_int8_encoding(13), 13 * 20});
  for (const auto lookup :
       {AffineCodes::Lookup::None, AffineCodes::Lookup::Checked, AffineCodes::Lookup::Any}) {
    for (const int bits : {2, 3, 4, 8}) {
      all.push_back({fmt::format("{} bits", bits),
                     affine_codes_encoding({.bits = bits,
                                            .lookup = lookup,
                                            .rows = 96,
                                            .columns = 32,
                                            .groups = 7,
                                            .group_rows = 15}),
                     96 * 32});
    }
  }
  all.push_back(
      {"awq",
       affine_codes_encoding(
           {.order = CodeOrder::Awq, .rows = 30, .columns = 40, .groups = 5, .group_rows = 6}),
       30 * 40});
  return all;
}

/// The bytes of each part, by byte.
std::map<std::uint32_t, std::set<std::uint64_t>> bytes_needed(const Encoding& encoding,
                                                              ElementRange elements) {
  std::vector<PartRange> needs;
  encoding.add_needs(elements, needs);
  std::map<std::uint32_t, std::set<std::uint64_t>> bytes;
  for (const PartRange& need : needs) {
    EXPECT_LE(need.part, encoding.companions());
    for (std::uint64_t at = need.range.begin; at < need.range.end; ++at)
      bytes[need.part].insert(at);
  }
  return bytes;
}

TEST(Encoding, NeedsOfAPartLieWithinThoseOfTheWholeAndWithinTheirBound) {
  std::mt19937_64 random(5);
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const std::int64_t unit = one.encoding->granule().unit();
    const std::uint64_t own = one.encoding->nbytes(one.numel).value();
    const auto draw = [&](ElementRange within) -> ElementRange {
      const auto border = [&](std::int64_t at) { return at / unit * unit; };
      const std::int64_t first =
          border(within.first + static_cast<std::int64_t>(random()) % within.count);
      const std::int64_t begin = std::max(within.first, first);
      std::int64_t end =
          begin + 1 + static_cast<std::int64_t>(random() >> 1) % (within.end() - begin);
      end = std::min(within.end(), (end + unit - 1) / unit * unit);
      return {begin, end - begin};
    };
    for (int k = 0; k < 300; ++k) {
      const ElementRange whole = draw({0, one.numel});
      const ElementRange part = draw(whole);
      const auto needed = bytes_needed(*one.encoding, whole);
      for (const auto& [number, bytes] : needed) {
        EXPECT_LE(bytes.size(), one.encoding->most_bytes(number, whole.count));
        if (number == 0) {
          EXPECT_LT(*bytes.rbegin(), own);
        }
      }
      for (const auto& [number, bytes] : bytes_needed(*one.encoding, part)) {
        EXPECT_TRUE(std::ranges::includes(needed.at(number), bytes));
      }
    }
  }
}

TEST(Encoding, GranulesShareNoBytes) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const Granule granule = one.encoding->granule();
    EXPECT_GE(granule.unit(), 1);
    EXPECT_LE(granule.unit(), kMaxUnit);
    const std::int64_t block = granule.block();
    if (block >= one.numel) continue;
    const auto first = bytes_needed(*one.encoding, {0, block}).at(0);
    EXPECT_EQ(first.size(), granule.bytes * static_cast<std::uint64_t>(granule.stride));
    const std::int64_t next = std::min(one.numel, 2 * block) - block;
    EXPECT_GT(*bytes_needed(*one.encoding, {block, next}).at(0).begin(), *first.rbegin());
  }
}

TEST(PlainEncoding, IsOneForEachDType) {
  EXPECT_EQ(&plain_encoding(DType::F16), &plain_encoding(DType::F16));
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const Encoding& plain = plain_encoding(dtype);
    EXPECT_EQ(plain.dtype(), dtype);
    EXPECT_TRUE(plain.is_plain());
    EXPECT_EQ(plain.companions(), 0U);
    EXPECT_EQ(plain.text(), name(dtype));
    EXPECT_EQ(plain.exactness(dtype), Exactness::BitExact);
  }
  EXPECT_EQ(plain_encoding(DType::F4).granule().elements, 2);
  EXPECT_EQ(plain_encoding(DType::F6E3M2).granule().elements, 4);
  EXPECT_EQ(plain_encoding(DType::F6E3M2).granule().bytes, 3U);
  EXPECT_EQ(plain_encoding(DType::F4).nbytes(3), std::nullopt);
}

TEST(PlainEncoding, IsExactWhereACastKeepsEveryValue) {
  const auto exactness = [](DType from, DType to) { return plain_encoding(from).exactness(to); };
  EXPECT_EQ(exactness(DType::F16, DType::BF16), Exactness::Lossy);
  EXPECT_EQ(exactness(DType::BF16, DType::F16), Exactness::Lossy);
  EXPECT_EQ(exactness(DType::F16, DType::F32), Exactness::Exact);
  EXPECT_EQ(exactness(DType::F32, DType::F64), Exactness::Exact);
  EXPECT_EQ(exactness(DType::F64, DType::F32), Exactness::Lossy);
  EXPECT_EQ(exactness(DType::U8, DType::BF16), Exactness::Exact);
  EXPECT_EQ(exactness(DType::I8, DType::BF16), Exactness::Exact);
  EXPECT_EQ(exactness(DType::I16, DType::BF16), Exactness::Lossy);
  EXPECT_EQ(exactness(DType::U16, DType::F32), Exactness::Exact);
  EXPECT_EQ(exactness(DType::I32, DType::F32), Exactness::Lossy);
  EXPECT_EQ(exactness(DType::U32, DType::F64), Exactness::Exact);
  EXPECT_EQ(exactness(DType::I64, DType::F64), Exactness::Lossy);
}

TEST(BlockScaleEncoding, GivesItsLabelItself) {
  const BlockScale scale{.rows = 5, .columns = 7, .block_rows = 2, .block_columns = 3};
  const auto encoding = block_scale_encoding(scale);
  EXPECT_EQ(encoding->exactness(DType::F32), Exactness::BitExact);
  EXPECT_EQ(encoding->exactness(DType::BF16), Exactness::BitExact);
  EXPECT_EQ(encoding->exactness(DType::F16), Exactness::Lossy);
  EXPECT_EQ(encoding->exactness(DType::F64), Exactness::Exact);
  EXPECT_EQ(encoding->text(), "F8_E4M3 with scale");
  EXPECT_EQ(*find_block_scale(*encoding), scale);
  EXPECT_EQ(find_block_scale(plain_encoding(DType::F32)), nullptr);
  BlockScale narrow = scale;
  narrow.result = DType::BF16;
  EXPECT_EQ(block_scale_encoding(narrow)->exactness(DType::BF16), Exactness::BitExact);
  EXPECT_EQ(block_scale_encoding(narrow)->exactness(DType::F16), Exactness::Lossy);
  for (const DType wide : {DType::F32, DType::F64}) {
    EXPECT_EQ(block_scale_encoding(narrow)->exactness(wide), Exactness::Exact);
  }
  BlockScale half = scale;
  half.result = DType::F16;
  EXPECT_EQ(block_scale_encoding(half)->exactness(DType::F16), Exactness::BitExact);
  EXPECT_EQ(block_scale_encoding(half)->exactness(DType::BF16), Exactness::Lossy);
  EXPECT_EQ(block_scale_encoding(half)->exactness(DType::F32), Exactness::Exact);
  // A decoded F32 is not bit-exact by itself.
  EXPECT_EQ(scale_inside().encoding->exactness(DType::BF16), Exactness::Lossy);
}

TEST(BlockScaleEncoding, NeedsOfOneRowOnlyTheScalesOfItsColumns) {
  const auto encoding =
      block_scale_encoding({.rows = 256, .columns = 1000, .block_rows = 128, .block_columns = 100});
  std::vector<PartRange> needs;
  encoding->add_needs({1150, 60}, needs);     // row 1, columns 150 to 209
  encoding->add_needs({127950, 100}, needs);  // rows 127 and 128: two rows of the grid
  EXPECT_EQ(needs, (std::vector<PartRange>{
                       {0, {1150, 1210}}, {1, {4, 12}}, {0, {127950, 128050}}, {1, {0, 80}}}));
}

TEST(BlockScaleEncoding, DecodesRowsOfMoreBlocksThanItWidensAtOnce) {
  // 3,000 blocks of one element.
  const auto encoding = block_scale_encoding(
      {.scale = DType::U8, .rows = 1, .columns = 3000, .block_rows = 1, .block_columns = 1});
  std::vector<std::byte> bytes(6000, std::byte{0x38});  // 1.0 in F8E4M3
  for (std::size_t i = 0; i < 3000; ++i) bytes[3000 + i] = static_cast<std::byte>(100 + i % 50);
  const PartBytes::Window windows[] = {{{0, 3000}, bytes.data()}, {{0, 3000}, bytes.data() + 3000}};
  const std::span<const PartBytes::Window> parts[] = {std::span(windows, 1),
                                                      std::span(windows + 1, 1)};
  std::vector<float> values(3000);
  ASSERT_TRUE(encoding->decode(
      {0, 3000}, PartBytes(parts),
      {DType::F32, std::as_writable_bytes(std::span(values)), {}, KernelSet::Fast}));
  for (std::size_t i = 0; i < 3000; ++i) {
    EXPECT_EQ(values[i], std::ldexp(1.0F, static_cast<int>(100 + i % 50) - 127)) << i;
  }
}

TEST(BlockScaleEncoding, DecodesAPieceOfARowOfAnyLength) {
  // 512 blocks as wide are more than an int64 counts.
  for (const std::int64_t columns : {std::int64_t{1} << 54, std::int64_t{1} << 57}) {
    const auto encoding = block_scale_encoding(
        {.rows = 1, .columns = columns, .block_rows = 1, .block_columns = columns});
    const std::vector<std::byte> codes(64, std::byte{0x38});  // 1.0 in F8E4M3
    const float scale = 3;
    const std::uint64_t at = static_cast<std::uint64_t>(columns) - 64;
    const PartBytes::Window windows[] = {{{at, at + 64}, codes.data()},
                                         {{0, 4}, std::as_bytes(std::span(&scale, 1)).data()}};
    const std::span<const PartBytes::Window> parts[] = {std::span(windows, 1),
                                                        std::span(windows + 1, 1)};
    std::vector<float> values(64);
    ASSERT_TRUE(encoding->decode(
        {columns - 64, 64}, PartBytes(parts),
        {DType::F32, std::as_writable_bytes(std::span(values)), {}, KernelSet::Fast}));
    EXPECT_EQ(values, std::vector<float>(64, 3.0F));
  }
}

}  // namespace
}  // namespace ckfs
