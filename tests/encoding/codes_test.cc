// What encodings of packed codes decode to, against the definitions in their headers, computed here
// one element at a time. Parts hold only the bytes that were asked for.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <gtest/gtest.h>
#include <random>

#include "base/load_le.h"
#include "encoding/affine_codes_encoding.h"
#include "encoding/row_int8_encoding.h"
#include "encoding/table_codes_encoding.h"

namespace ckfs {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::mt19937_64& random, std::size_t size) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

template <typename T>
Bytes bytes_of_all(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// Decodes from nothing but the needs of `elements`.
Result<Bytes> decoded(const Encoding& encoding, const std::vector<Bytes>& parts,
                      ElementRange elements, DType to, KernelSet set = KernelSet::Fast) {
  std::vector<PartRange> needs;
  encoding.add_needs(elements, needs);
  std::ranges::sort(needs, {},
                    [](const PartRange& need) { return std::pair(need.part, need.range.begin); });
  std::vector<std::vector<PartBytes::Window>> windows(parts.size());
  for (const PartRange& need : needs) {
    EXPECT_LE(need.range.end, parts.at(need.part).size());
    auto& all = windows[need.part];
    if (!all.empty() && need.range.begin <= all.back().range.end) {
      all.back().range.end = std::max(all.back().range.end, need.range.end);
    } else {
      all.push_back({need.range});
    }
  }
  std::deque<Bytes> copies;  // of nothing else
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for (PartBytes::Window& window : windows[part]) {
      copies.emplace_back(parts[part].begin() + static_cast<long>(window.range.begin),
                          parts[part].begin() + static_cast<long>(window.range.end));
      window.bytes = copies.back().data();
    }
  }
  const std::vector<std::span<const PartBytes::Window>> views(windows.begin(), windows.end());
  Bytes out(bytes_of(to, elements.count));
  Bytes scratch(encoding.scratch(elements.count));
  CKFS_TRY_VOID(encoding.decode(elements, PartBytes(views), {to, out, scratch, set}));
  return out;
}

float float_at(const Bytes& bytes, std::size_t i) {
  return load_le<float>(std::span(bytes).subspan(4 * i));
}

unsigned field(const Bytes& bytes, std::size_t bit, int size) {
  unsigned value = 0;
  for (int b = 0; b < size; ++b, ++bit) {
    value |= (static_cast<unsigned>(bytes[bit / 8]) >> bit % 8 & 1U) << b;
  }
  return value;
}

/// A matrix of random codes and its values.
struct Matrix {
  explicit Matrix(const AffineCodes& codes) : kind(codes), encoding(affine_codes_encoding(codes)) {
    std::mt19937_64 random(3);
    const auto rows = static_cast<std::size_t>(codes.rows);
    const auto columns = static_cast<std::size_t>(codes.columns);
    const auto size = static_cast<std::size_t>(codes.bits);
    const auto cells = static_cast<std::size_t>(codes.groups) * columns;
    std::vector<float> scales(cells);
    for (float& scale : scales) scale = static_cast<float>(random() % 1000) * 0x1p-10F - 0.25F;
    std::vector<std::int32_t> groups(rows);
    for (std::size_t r = 0; r < rows; ++r) {
      groups[r] = static_cast<std::int32_t>(r / static_cast<std::size_t>(codes.group_rows));
    }
    if (codes.lookup == AffineCodes::Lookup::Any) std::ranges::shuffle(groups, random);
    parts = {random_bytes(random, rows * columns * size / 8), bytes_of_all(scales),
             random_bytes(random, cells * size / 8)};
    if (codes.lookup != AffineCodes::Lookup::None) parts.push_back(bytes_of_all(groups));
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) {
        const auto cell = static_cast<std::size_t>(groups[r]) * columns + c;
        const auto steps = static_cast<int>(code(r, c)) - zero(cell);
        values.push_back(static_cast<float>(steps) * scales[cell]);
      }
    }
  }

  unsigned code(std::size_t r, std::size_t c) const {
    const auto columns = static_cast<std::size_t>(kind.columns);
    if (kind.order == CodeOrder::Awq) return awq(parts[0], r * columns + c);
    // A column of 32 rows is a stream of bits over words that lie a row of words apart.
    const auto size = static_cast<std::size_t>(kind.bits);
    unsigned value = 0;
    for (std::size_t b = 0; b < size; ++b) {
      const std::size_t bit = r % 32 * size + b;
      const std::size_t word = (r / 32 * size + bit / 32) * columns + c;
      value |= field(parts[0], word * 32 + bit % 32, 1) << b;
    }
    return value;
  }

  int zero(std::size_t cell) const {
    if (kind.order == CodeOrder::Awq) return static_cast<int>(awq(parts[2], cell));
    const auto size = static_cast<std::size_t>(kind.bits);
    const unsigned stored = field(parts[2], cell * size, kind.bits);
    switch (kind.zeros) {
      case AffineCodes::Zeros::Stored:
        return static_cast<int>(stored);
      case AffineCodes::Zeros::PlusOne:
        return static_cast<int>(stored + 1);
      case AffineCodes::Zeros::PlusOneWrapped:
        return static_cast<int>((stored + 1) % (1U << kind.bits));
      case AffineCodes::Zeros::PlusOneInWords:
        break;
    }
    // One is added to this field and to those below it in the word.
    const std::size_t first = cell * size / 32 * 32;
    unsigned carry = 0;
    for (std::size_t bit = first;; bit += size) {
      const unsigned sum = field(parts[2], bit, kind.bits) + 1 + carry;
      if (bit == cell * size) return static_cast<int>(sum % (1U << kind.bits));
      carry = sum >> kind.bits;
    }
  }

  static unsigned awq(const Bytes& words, std::size_t i) {
    constexpr std::array<std::size_t, 8> kColumn = {0, 2, 4, 6, 1, 3, 5, 7};  // of nibble 0 to 7
    const auto nibble =
        static_cast<std::size_t>(std::ranges::find(kColumn, i % 8) - kColumn.begin());
    return field(words, i / 8 * 32 + nibble * 4, 4);
  }

  AffineCodes kind;
  std::shared_ptr<const Encoding> encoding;
  std::vector<Bytes> parts;  // as the encoding numbers them
  std::vector<float> values;
};

TEST(AffineCodes, DecodeAnyRunFromItsNeedsAlone) {
  std::mt19937_64 random(4);
  std::vector<AffineCodes> kinds;
  using Zeros = AffineCodes::Zeros;
  for (const auto lookup :
       {AffineCodes::Lookup::None, AffineCodes::Lookup::Checked, AffineCodes::Lookup::Any}) {
    for (const auto zeros :
         {Zeros::Stored, Zeros::PlusOne, Zeros::PlusOneWrapped, Zeros::PlusOneInWords}) {
      for (const int bits : {2, 3, 4, 8}) {
        if (bits == 3 && zeros == Zeros::PlusOneInWords) continue;
        kinds.push_back({.bits = bits,
                         .scale = DType::F32,
                         .zeros = zeros,
                         .lookup = lookup,
                         .rows = 96,
                         .columns = 64,
                         .groups = 4,
                         .group_rows = 31});
      }
    }
  }
  kinds.push_back({.order = CodeOrder::Awq,
                   .scale = DType::F32,
                   .rows = 37,
                   .columns = 72,
                   .groups = 4,
                   .group_rows = 10});
  for (const AffineCodes& kind : kinds) {
    const Matrix matrix(kind);
    const std::int64_t unit = matrix.encoding->granule().unit();
    const std::int64_t numel = kind.rows * kind.columns;
    for (int k = 0; k < 60; ++k) {
      const auto first =
          static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(numel)) / unit * unit;
      const auto most = static_cast<std::uint64_t>((numel - first) / unit);
      const auto count = static_cast<std::int64_t>(
                             1 + random() % std::min<std::uint64_t>(most, k % 2 == 0 ? 40 : 4000)) *
                         unit;
      for (const KernelSet set : {KernelSet::Reference, KernelSet::Fast}) {
        const auto bytes =
            decoded(*matrix.encoding, matrix.parts, {first, count}, DType::F32, set).value();
        for (std::int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(float_at(bytes, static_cast<std::size_t>(i)),
                    matrix.values[static_cast<std::size_t>(first + i)])
              << kind.bits << " bits, element " << first + i;
        }
      }
    }
  }
}

TEST(AffineCodes, AGroupThatIsNotThereIsCorrupt) {
  const AffineCodes kind{
      .lookup = AffineCodes::Lookup::Any, .rows = 8, .columns = 8, .groups = 2, .group_rows = 4};
  const auto encoding = affine_codes_encoding(kind);
  for (const std::int32_t wrong : {2, -1, 1 << 30}) {
    std::vector<Bytes> parts = {Bytes(32), Bytes(32), Bytes(8),
                                bytes_of_all<std::int32_t>({0, 0, 0, 0, 1, 1, wrong, 1})};
    EXPECT_TRUE(decoded(*encoding, parts, {0, 48}, DType::F32));
    const auto failed = decoded(*encoding, parts, {0, 64}, DType::F32);
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().code(), ErrorCode::Corrupt);
    EXPECT_EQ(failed.error().message(), fmt::format("g_idx[6]: {} (groups: 2)", wrong));
  }
}

TEST(AffineCodes, AnOrderThatContradictsTheConfigurationIsCorrupt) {
  const AffineCodes kind{.lookup = AffineCodes::Lookup::Checked,
                         .rows = 8,
                         .columns = 8,
                         .groups = 2,
                         .group_rows = 4};
  const std::vector<Bytes> parts = {Bytes(32), Bytes(32), Bytes(8),
                                    bytes_of_all<std::int32_t>({0, 0, 0, 1, 1, 1, 1, 1})};
  const auto failed = decoded(*affine_codes_encoding(kind), parts, {24, 8}, DType::F32);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message(), "g_idx[3]: 1, but without desc_act it is 0");
}

TEST(AffineCodes, HaveGranulesAlongRowsOrColumns) {
  AffineCodes kind{.rows = 64, .columns = 32, .groups = 1, .group_rows = 64};
  const auto granule = [&] { return affine_codes_encoding(kind)->granule(); };
  EXPECT_EQ(granule().elements, 8);
  EXPECT_EQ(granule().stride, 32);
  EXPECT_EQ(affine_codes_encoding(kind)->nbytes(64 * 32), 64U * 32 / 2);
  kind.bits = 3;
  EXPECT_EQ(granule().elements, 32);
  EXPECT_EQ(granule().bytes, 12U);
  EXPECT_EQ(affine_codes_encoding(kind)->nbytes(64 * 32), 64U * 32 * 3 / 8);
  kind.bits = 4;
  kind.order = CodeOrder::Awq;
  EXPECT_EQ(granule().unit(), 8);
  EXPECT_EQ(granule().stride, 1);
}

TEST(AffineCodes, GiveTheirLabelThemselves) {
  const auto encoding =
      affine_codes_encoding({.rows = 8, .columns = 8, .groups = 1, .group_rows = 8});
  for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
    EXPECT_TRUE(encoding->decodes_to(dtype));
    EXPECT_EQ(encoding->exactness(dtype), Exactness::BitExact);
  }
  EXPECT_FALSE(encoding->decodes_to(DType::F64));
  EXPECT_EQ(encoding->exactness(DType::F64), Exactness::Exact);
  EXPECT_EQ(encoding->text(), "4-bit codes with zero point and scale");
}

TEST(TableCodes, DecodeAnyRunFromItsNeedsAlone) {
  std::mt19937_64 random(5);
  const std::size_t numel = 2 * 64 * 70 + 7;  // more blocks than are prepared at once
  const std::size_t blocks = (numel + 63) / 64;
  std::vector<float> map(16), nested_map(256), nested_absmax((blocks + 9) / 10), absmax(blocks);
  const auto fill = [&](std::vector<float>& values) {
    for (float& value : values) value = static_cast<float>(random() % 2001) * 0x1p-11F - 0.5F;
  };
  fill(map);
  fill(nested_map);
  fill(nested_absmax);
  fill(absmax);
  const Bytes codes = random_bytes(random, (numel + 1) / 2);
  const Bytes nested_codes = random_bytes(random, blocks);
  for (const bool nested : {false, true}) {
    const float offset = 0.0371F;
    std::vector<float> scales = absmax;
    for (std::size_t b = 0; nested && b < blocks; ++b) {
      const float product =
          nested_map[static_cast<std::size_t>(nested_codes[b])] * nested_absmax[b / 10];
      scales[b] = product + offset;
    }
    std::vector<Bytes> parts = {codes, nested ? nested_codes : bytes_of_all(absmax),
                                bytes_of_all(map)};
    if (nested) {
      parts.push_back(bytes_of_all(nested_absmax));
      parts.push_back(bytes_of_all(nested_map));
    }
    for (const DType dtype : {DType::F32, DType::BF16, DType::F16}) {
      const auto encoding = table_codes_encoding(
          {.values = dtype, .block = 64, .nested_block = nested ? 10 : 0, .nested_offset = offset});
      EXPECT_EQ(encoding->dtype(), dtype);
      for (int k = 0; k < 40; ++k) {
        const std::size_t first = random() % (numel / 2) * 2;
        std::size_t count = std::min<std::size_t>(numel - first, 2 * (1 + random() % 5000));
        std::vector<float> wanted;
        for (std::size_t i = first; i < first + count; ++i) {
          const auto pair = static_cast<unsigned>(codes[i / 2]);
          wanted.push_back(map[i % 2 == 0 ? pair >> 4 : pair & 15] * scales[i / 64]);
        }
        Bytes expected = bytes_of_all(wanted);
        if (dtype != DType::F32) {
          Bytes rounded(count * 2);
          find_cast(DType::F32, dtype, KernelSet::Reference)(expected.data(), rounded.data(),
                                                             count);
          expected = rounded;
        }
        for (const KernelSet set : {KernelSet::Reference, KernelSet::Fast}) {
          ASSERT_EQ(decoded(*encoding, parts,
                            {static_cast<std::int64_t>(first), static_cast<std::int64_t>(count)},
                            dtype, set)
                        .value(),
                    expected);
        }
      }
    }
  }
}

TEST(TableCodes, CodeEightMayBeMinusZero) {
  std::vector<float> map(16, 0.0F);
  const std::vector<Bytes> parts = {Bytes(1, std::byte{0x80}), bytes_of_all<float>({2}),
                                    bytes_of_all(map)};
  for (const bool negative : {false, true}) {
    const auto encoding = table_codes_encoding({.negative_zero = negative});
    const Bytes bytes = decoded(*encoding, parts, {0, 2}, DType::BF16).value();
    EXPECT_EQ(bytes[1], std::byte{negative ? std::uint8_t{0x80} : std::uint8_t{0}});
    EXPECT_EQ(bytes[3], std::byte{0});
  }
}

TEST(TableCodes, GiveTheirLabelThemselves) {
  const auto encoding = table_codes_encoding({.values = DType::BF16});
  EXPECT_EQ(encoding->exactness(DType::BF16), Exactness::BitExact);
  EXPECT_EQ(encoding->exactness(DType::F32), Exactness::Exact);
  EXPECT_EQ(encoding->exactness(DType::F64), Exactness::Exact);
  EXPECT_EQ(encoding->exactness(DType::F16), Exactness::Lossy);
  EXPECT_EQ(encoding->text(), "4-bit codes with table and scale");
  EXPECT_EQ(table_codes_encoding({.nested_block = 256})->text(),
            "4-bit codes with table and nested scale");
}

TEST(RowInt8, DecodesAnyRunFromItsNeedsAlone) {
  std::mt19937_64 random(6);
  const std::int64_t columns = 3000;  // more than are decoded at once
  const Bytes codes = random_bytes(random, static_cast<std::size_t>(5 * columns));
  const std::vector<float> scales = {0.0371F, 1.5F, 0, 127, 0x1p-120F};
  const auto encoding = row_int8_encoding(columns);
  for (int k = 0; k < 50; ++k) {
    const auto first = static_cast<std::int64_t>(random() % (5U * 3000));
    const auto count =
        static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(5 * columns - first));
    const Bytes bytes =
        decoded(*encoding, {codes, bytes_of_all(scales)}, {first, count}, DType::F32).value();
    const Bytes halves =
        decoded(*encoding, {codes, bytes_of_all(scales)}, {first, count}, DType::BF16).value();
    for (std::int64_t i = 0; i < count; ++i) {
      const auto code =
          static_cast<float>(static_cast<std::int8_t>(codes[static_cast<std::size_t>(first + i)]));
      const float once = code * scales[static_cast<std::size_t>((first + i) / columns)];
      const float value = once * 7.874015718698502e-3F;
      ASSERT_EQ(float_at(bytes, static_cast<std::size_t>(i)), value);
      std::uint16_t rounded = 0;
      find_cast(DType::F32, DType::BF16, KernelSet::Reference)(
          std::as_bytes(std::span(&value, 1)).data(),
          std::as_writable_bytes(std::span(&rounded, 1)).data(), 1);
      ASSERT_EQ(load_le<std::uint16_t>(std::span(halves).subspan(static_cast<std::size_t>(2 * i))),
                rounded);
    }
  }
  EXPECT_EQ(encoding->exactness(DType::BF16), Exactness::BitExact);
  EXPECT_EQ(encoding->exactness(DType::F32), Exactness::BitExact);
  EXPECT_EQ(encoding->exactness(DType::F64), Exactness::Exact);
  EXPECT_EQ(encoding->exactness(DType::F16), Exactness::Lossy);
  EXPECT_EQ(encoding->text(), "I8 with row scale");
}

}  // namespace
}  // namespace ckfs
