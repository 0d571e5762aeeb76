// Codes with scales in all their kinds: any run of elements, read from just the bytes it says it
// needs, against arithmetic element by element in double.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <vector>

#include "base/rounding.h"
#include "encoding/block_scale_encoding.h"

namespace ckfs {
namespace {

using Bytes = std::vector<std::byte>;

struct Sample {
  BlockScale kind;
  std::int64_t matrices = 1;
  std::vector<Bytes> parts;

  std::int64_t numel() const { return matrices * kind.rows * kind.columns; }
};

std::uint32_t word(const Bytes& bytes, std::size_t i) {
  std::uint32_t value = 0;
  std::memcpy(&value, &bytes.at(i * 4), 4);
  return value;
}

int width_of(const BlockScale& kind) {
  return kind.codes == DType::I32 ? kind.packing.bits : kind.codes == DType::F4 ? 4 : 8;
}

// Bits [at, at + bits) of a stream.
unsigned bits_at(const Bytes& bytes, std::size_t at, int bits) {
  unsigned code = 0;
  for (int b = 0; b < bits; ++b) {
    const std::size_t bit = at + static_cast<std::size_t>(b);
    code |= (std::to_integer<unsigned>(bytes.at(bit / 8)) >> bit % 8 & 1U) << b;
  }
  return code;
}

double small_float(unsigned code, int exponent_bits, int mantissa_bits, int bias) {
  const unsigned mantissa = code & ((1U << mantissa_bits) - 1);
  const int exponent = static_cast<int>(code >> mantissa_bits & ((1U << exponent_bits) - 1));
  const double sign = code >> (exponent_bits + mantissa_bits) != 0 ? -1.0 : 1.0;
  const double fraction = mantissa / std::ldexp(1.0, mantissa_bits);
  return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                       : sign * std::ldexp(1 + fraction, exponent - bias);
}

double code_value(const Sample& sample, std::int64_t row, std::int64_t column) {
  const BlockScale& kind = sample.kind;
  const int bits = width_of(kind);
  if (kind.codes == DType::I32) {
    const std::int64_t per = 32 / bits;
    const std::int64_t words =
        kind.packing.in_words ? (kind.columns + per - 1) / per : (kind.columns * bits + 31) / 32;
    const std::int64_t in_row =
        kind.packing.in_words ? column / per * 32 + column % per * bits : column * bits;
    const unsigned code =
        bits_at(sample.parts[0], static_cast<std::size_t>(row * words * 32 + in_row), bits);
    return static_cast<int>(code) - (1 << (bits - 1));
  }
  const unsigned code = bits_at(
      sample.parts[0], static_cast<std::size_t>((row * kind.columns + column) * bits), bits);
  if (kind.codes == DType::I8) return static_cast<std::int8_t>(code);
  if (kind.codes == DType::F4) {
    const double value = small_float(code, 2, 1, 1);
    return value == 0 && !kind.minus_zero ? 0.0 : value;
  }
  return small_float(code, 4, 3, 7);
}

// Rounds as a cast from F32, itself tested elsewhere.
std::vector<std::byte> cast(float value, DType to) {
  Bytes out(bytes_of(to, 1));
  const auto in = std::as_bytes(std::span(&value, 1));
  if (to == DType::F32) {
    std::ranges::copy(in, out.begin());
  } else {
    find_cast(DType::F32, to, KernelSet::Reference)(in.data(), out.data(), 1);
  }
  return out;
}

Bytes expected(const Sample& sample, std::int64_t element, DType to) {
  const BlockScale& kind = sample.kind;
  const std::int64_t row = element / kind.columns;
  const std::int64_t column = element % kind.columns;
  const std::int64_t matrix = row / kind.rows;
  const std::int64_t grid_columns = ceil_div(kind.columns - kind.padding, kind.block_columns);
  const std::int64_t grid_row =
      matrix * ceil_div(kind.rows, kind.block_rows) + row % kind.rows / kind.block_rows;
  std::size_t part = 2;
  const Bytes* global = kind.global == BlockScale::Global::None ? nullptr : &sample.parts[part++];
  const Bytes* zeros = kind.zeros == BlockScale::Zeros::None ? nullptr : &sample.parts[part++];
  std::int64_t block = column / kind.block_columns;
  if (kind.groups) block = word(sample.parts[part], static_cast<std::size_t>(column));
  const auto at = static_cast<std::size_t>(grid_row * grid_columns + block);

  float scale = 0;
  const Bytes& scales = sample.parts[1];
  if (kind.scale == DType::F32) {
    scale = std::bit_cast<float>(word(scales, at));
  } else if (kind.scale == DType::BF16 || kind.scale == DType::F16) {
    const unsigned code = bits_at(scales, at * 16, 16);
    scale = kind.scale == DType::BF16 ? std::bit_cast<float>(code << 16)
                                      : static_cast<float>(small_float(code, 5, 10, 15));
  } else if (kind.scale == DType::F8E4M3) {
    scale = static_cast<float>(small_float(bits_at(scales, at * 8, 8), 4, 3, 7));
  } else {
    scale = std::ldexp(1.0F, std::to_integer<int>(scales.at(at)) - 127);
  }
  if (global != nullptr) {
    const auto g = std::bit_cast<float>(
        word(*global, static_cast<std::size_t>(kind.global_each ? matrix : 0)));
    scale = kind.global == BlockScale::Global::Divides ? scale / g : scale * g;
  }
  double zero = 0;
  if (kind.zeros == BlockScale::Zeros::Integers) {
    zero = static_cast<std::int8_t>(zeros->at(at));
  } else if (zeros != nullptr) {
    // Each column of the grid is a row of codes of its own.
    const int bits = width_of(kind);
    const std::int64_t per = 32 / bits;
    Bytes stream;
    for (std::size_t w = static_cast<std::size_t>(block); w * 4 < zeros->size();
         w += static_cast<std::size_t>(grid_columns)) {
      stream.insert(stream.end(), zeros->begin() + static_cast<std::ptrdiff_t>(w * 4),
                    zeros->begin() + static_cast<std::ptrdiff_t>(w * 4 + 4));
    }
    const std::int64_t bit =
        kind.packing.in_words ? grid_row / per * 32 + grid_row % per * bits : grid_row * bits;
    zero =
        static_cast<int>(bits_at(stream, static_cast<std::size_t>(bit), bits)) - (1 << (bits - 1));
  }
  const double factor = code_value(sample, row, column) - zero;
  const auto product = static_cast<float>(factor * static_cast<double>(scale));
  Bytes result = cast(product, kind.result);
  return to == kind.result ? result : cast(product, to);
}

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }
  template <typename T>
  T one_of(std::initializer_list<T> list) {
    return *(list.begin() + below(std::ssize(list)));
  }
  Bytes bytes(std::int64_t count) {
    Bytes out(static_cast<std::size_t>(count));
    for (std::byte& byte : out) byte = static_cast<std::byte>(random_());
    return out;
  }

  Sample sample() {
    Sample made;
    BlockScale& kind = made.kind;
    kind.codes = one_of({DType::F8E4M3, DType::I8, DType::F4, DType::I32, DType::I32, DType::I32});
    kind.rows = 1 + below(20);
    kind.columns = 2 * (1 + below(40));
    kind.block_rows = one_of<std::int64_t>({1, 1, 3, kind.rows});
    kind.block_columns = one_of<std::int64_t>({1, 5, 16, 16, 32, kind.columns});
    kind.scale = one_of({DType::F32, DType::BF16, DType::U8, DType::F8E4M3, DType::F16});
    kind.minus_zero = below(2) == 0;
    if (kind.codes == DType::I32) {
      pack(kind);
    } else if (below(2) == 0) {
      made.matrices = 1 + below(3);
    }
    if (kind.codes == DType::F4 && below(2) == 0) {
      kind.global = one_of({BlockScale::Global::Divides, BlockScale::Global::Multiplies});
      kind.global_each = below(2) == 0;
    } else if (kind.codes == DType::F4 && kind.scale == DType::U8) {
      kind.wide_exponent = below(2) == 0;
    }
    if (kind.codes == DType::I8 && below(2) == 0) kind.zeros = BlockScale::Zeros::Integers;
    if (is_castable_float(kind.scale) && below(2) == 0) kind.result = kind.scale;
    fill(made);
    return made;
  }

 private:
  void pack(BlockScale& kind) {
    const int bits = static_cast<int>(1 + below(8));
    kind.packing = {bits, 32 % bits != 0 && below(2) == 0};
    const std::int64_t logical = kind.columns;
    if (kind.packing.in_words) {
      kind.columns = round_up<std::int64_t>(logical, 32 / bits);
    } else {
      const std::int64_t words = ceil_div<std::int64_t>(logical * bits, 32);
      if (words * 32 % bits == 0) kind.columns = words * 32 / bits;
    }
    kind.padding = kind.columns - logical;
    kind.block_columns = std::min(kind.block_columns, logical);
    if (below(2) == 0) kind.zeros = BlockScale::Zeros::Packed;
    kind.groups = below(3) == 0 && logical % kind.block_columns == 0;
  }

  void fill(Sample& made) {
    const BlockScale& kind = made.kind;
    const std::int64_t rows = made.matrices * kind.rows;
    const auto encoding = block_scale_encoding(kind);
    const std::int64_t across = ceil_div(kind.columns - kind.padding, kind.block_columns);
    const std::int64_t grid_rows = made.matrices * ceil_div(kind.rows, kind.block_rows);
    made.parts.push_back(
        bytes(static_cast<std::int64_t>(encoding->nbytes(rows * kind.columns).value())));
    if (kind.codes == DType::F8E4M3) {
      for (std::byte& code : made.parts[0]) code &= std::byte{0xf7};  // no NaN
    }
    Bytes scales = bytes(static_cast<std::int64_t>(bytes_of(kind.scale, grid_rows * across)));
    // Numbers of any sign that are neither subnormal nor near the largest.
    for (std::size_t i = 0; i < scales.size(); ++i) {
      if (kind.scale == DType::F8E4M3) scales[i] &= std::byte{0xf7};
      if (kind.scale == DType::U8) scales[i] = static_cast<std::byte>(100 + below(50));
      const bool top = kind.scale == DType::F32 ? i % 4 == 3 : i % 2 == 1;
      if (is_castable_float(kind.scale) && top) {
        scales[i] = (scales[i] & std::byte{0x83}) | std::byte{0x38};
      }
    }
    made.parts.push_back(std::move(scales));
    if (kind.global != BlockScale::Global::None) {
      Bytes globals;
      for (std::int64_t i = 0; i < (kind.global_each ? made.matrices : 1); ++i) {
        const Bytes one = cast(0.7F + static_cast<float>(below(1000)), DType::F32);
        globals.insert(globals.end(), one.begin(), one.end());
      }
      made.parts.push_back(std::move(globals));
    }
    if (kind.zeros == BlockScale::Zeros::Integers) made.parts.push_back(bytes(grid_rows * across));
    if (kind.zeros == BlockScale::Zeros::Packed) {
      const std::int64_t words = kind.packing.in_words
                                     ? ceil_div<std::int64_t>(grid_rows, 32 / kind.packing.bits)
                                     : ceil_div<std::int64_t>(grid_rows * kind.packing.bits, 32);
      made.parts.push_back(bytes(words * across * 4));
    }
    if (kind.groups) {
      std::vector<std::int32_t> order;
      for (std::int64_t c = 0; c < kind.columns - kind.padding; ++c) {
        order.push_back(static_cast<std::int32_t>(c / kind.block_columns));
      }
      std::shuffle(order.begin(), order.end(), random_);
      const auto stored = std::as_bytes(std::span(order));
      made.parts.emplace_back(stored.begin(), stored.end());
    }
  }

  std::mt19937_64 random_;
};

// Decodes from nothing but the bytes that the encoding asks for.
Result<Bytes> decode(const Sample& sample, ElementRange elements, DType to, KernelSet kernels) {
  const auto encoding = block_scale_encoding(sample.kind);
  std::vector<PartRange> needs;
  encoding->add_needs(elements, needs);
  std::deque<Bytes> copies;  // of nothing else
  std::vector<std::vector<PartBytes::Window>> windows(sample.parts.size());
  for (const PartRange& need : needs) {
    const Bytes& part = sample.parts.at(need.part);
    EXPECT_LE(need.range.end, part.size());
    EXPECT_LE(need.range.size(), encoding->most_bytes(need.part, elements.count));
    copies.emplace_back(part.begin() + static_cast<std::ptrdiff_t>(need.range.begin),
                        part.begin() + static_cast<std::ptrdiff_t>(need.range.end));
    windows[need.part].push_back({need.range, copies.back().data()});
  }
  std::vector<std::span<const PartBytes::Window>> spans(windows.begin(), windows.end());
  Bytes out(bytes_of(to, elements.count)), scratch(encoding->scratch(elements.count));
  CKFS_TRY_VOID(encoding->decode(elements, PartBytes(spans), {to, out, scratch, kernels}));
  Bytes same(out.size());
  CKFS_TRY_VOID(
      encoding->decode(elements, PartBytes(spans), {to, same, scratch, kernels, /*again=*/true}));
  EXPECT_EQ(std::memcmp(same.data(), out.data(), out.size()), 0);
  return out;
}

TEST(BlockScale, DecodesAnyRunOfAnyKindAsItsDefinition) {
  for (unsigned seed = 0; seed < 1500; ++seed) {
    Draw draw(seed);
    const Sample sample = draw.sample();
    const auto encoding = block_scale_encoding(sample.kind);
    const std::int64_t unit = encoding->granule().unit();
    EXPECT_EQ(encoding->companions() + 1, sample.parts.size());
    const std::int64_t first = draw.below(sample.numel()) / unit * unit;
    const std::int64_t count =
        std::min(sample.numel() - first,
                 round_up<std::int64_t>(1 + draw.below(sample.numel() - first), unit));
    for (const DType to : {DType::F32, DType::BF16, DType::F16}) {
      if (!encoding->decodes_to(to)) continue;
      Bytes want;
      for (std::int64_t i = first; i < first + count; ++i) {
        const std::int64_t column = i % sample.kind.columns;
        if (column >= sample.kind.columns - sample.kind.padding) {
          want.resize(want.size() + bytes_of(to, 1));
          continue;
        }
        const Bytes one = expected(sample, i, to);
        want.insert(want.end(), one.begin(), one.end());
      }
      for (const KernelSet kernels : {KernelSet::Reference, KernelSet::Fast}) {
        auto got = decode(sample, {first, count}, to, kernels);
        ASSERT_TRUE(got) << got.error().message();
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t column = (first + i) % sample.kind.columns;
          if (column < sample.kind.columns - sample.kind.padding) continue;
          std::fill_n(got->begin() + static_cast<std::ptrdiff_t>(bytes_of(to, i)), bytes_of(to, 1),
                      std::byte{0});
        }
        ASSERT_EQ(*got, want) << "seed " << seed << " to " << name(to);
      }
    }
  }
}

TEST(BlockScale, KeepsTheEdgesOfPowersOfTwo) {
  Sample sample;
  sample.kind = {.codes = DType::F4,
                 .scale = DType::U8,
                 .rows = 1,
                 .columns = 32,
                 .block_rows = 1,
                 .block_columns = 32};
  sample.parts = {Bytes(16), Bytes(1)};
  for (int i = 0; i < 16; ++i)
    sample.parts[0][static_cast<std::size_t>(i)] = static_cast<std::byte>(i | i << 4);
  const auto codes = [&](bool wide, int scale) {
    sample.kind.wide_exponent = wide;
    sample.parts[1][0] = static_cast<std::byte>(scale);
    const Bytes out = decode(sample, {0, 32}, DType::BF16, KernelSet::Fast).value();
    std::vector<unsigned> values;
    for (std::size_t code = 0; code < 16; ++code) values.push_back(bits_at(out, code * 32, 16));
    return values;
  };
  for (const bool wide : {false, true}) {
    EXPECT_EQ(codes(wide, 0)[1], 0x0020U);  // 2^-128
    EXPECT_EQ(codes(wide, 0)[15], 0x8140U);
    EXPECT_EQ(codes(wide, 1)[2], 0x0080U);
    EXPECT_EQ(codes(wide, 254)[7], 0x7f80U);
    EXPECT_EQ(codes(wide, 120)[9], 0xbb80U);
    EXPECT_EQ(codes(wide, 127)[8], 0x8000U);
  }
  EXPECT_EQ(codes(false, 255)[1], 0x7f80U);
  EXPECT_EQ(codes(false, 255)[0], 0x7fc0U);
  EXPECT_EQ(codes(true, 255)[1], 0x7f00U);
  EXPECT_EQ(codes(true, 255)[0], 0x0000U);
  EXPECT_EQ(codes(true, 255)[8], 0x8000U);
  EXPECT_EQ(codes(true, 255)[2], 0x7f80U);
}

Sample ordered(std::vector<std::int32_t> order) {
  Sample sample;
  sample.kind = {.codes = DType::I32,
                 .scale = DType::F32,
                 .rows = 1,
                 .columns = 8,
                 .block_rows = 1,
                 .block_columns = 4};
  sample.kind.packing = {4, false};
  sample.kind.groups = true;
  const auto stored = std::as_bytes(std::span(order));
  sample.parts = {Bytes(4), Bytes(8), Bytes(stored.begin(), stored.end())};
  return sample;
}

TEST(BlockScale, GroupsThatContradictThemselvesAreAnError) {
  const auto message = [](std::vector<std::int32_t> order) {
    const auto got = decode(ordered(std::move(order)), {0, 8}, DType::F32, KernelSet::Fast);
    return got ? "" : got.error().message();
  };
  EXPECT_EQ(message({0, 1, 0, 1, 1, 0, 1, 0}), "");
  EXPECT_EQ(message({0, 9, 0, 1, 1, -1, 1, 0}), "");  // no order
  EXPECT_EQ(message({0, 1, 0, 2, 1, 0, 1, 0}), "g_idx[3]: 2 (groups: 2)");
  EXPECT_EQ(message({0, -7, 0, 2, 1, 0, 1, 0}), "g_idx[1]: -7 (groups: 2)");
  EXPECT_EQ(message({0, 1, 0, 0, 1, 0, 1, 0}), "g_idx: group 0 has 5 columns (group size: 4)");
}

}  // namespace
}  // namespace ckfs
