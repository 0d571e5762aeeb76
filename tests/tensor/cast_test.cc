// Casts: the reference against what hardware and exact arithmetic say, the fast set against the
// reference on every code that fits 16 bits and on many that do not.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

#include "tensor/fast_sets.h"
#include "tensor/kernel.h"
#include "tensor/values.h"

namespace ckfs {
namespace {

constexpr DType kFloats[] = {DType::F64, DType::F32, DType::F16, DType::BF16};
constexpr DType kF8[] = {DType::F8E4M3, DType::F8E5M2, DType::F8E4M3FNUZ, DType::F8E5M2FNUZ,
                         DType::F8E8M0};

template <typename T>
std::vector<std::byte> as_bytes(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Every code of a format of at most 16 bits; for wider ones edges and random bits.
std::vector<std::byte> inputs(DType dtype) {
  if (bits(dtype) == 8) {
    std::vector<std::uint8_t> codes(256);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i);
    return as_bytes(codes);
  }
  if (bits(dtype) == 16) {
    std::vector<std::uint16_t> codes(65536);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
    return as_bytes(codes);
  }
  std::mt19937_64 random(7);
  if (dtype == DType::F32) {
    std::vector<std::uint32_t> codes;
    // Every sign, exponent and upper mantissa, with the lower bits that decide a rounding.
    for (std::uint32_t high = 0; high < 65536; ++high) {
      for (std::uint32_t low :
           {0U, 1U, 0x0fffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U, 0xf000U, 0xffffU}) {
        codes.push_back((high << 16) | low);
      }
      codes.push_back((high << 16) | static_cast<std::uint32_t>(random() & 0xffff));
    }
    return as_bytes(codes);
  }
  std::vector<std::uint64_t> codes;
  for (std::uint64_t high = 0; high < 4096; ++high) {  // every sign and exponent
    for (std::uint64_t low :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 28, (std::uint64_t{1} << 28) + 1,
          (std::uint64_t{3} << 28), (std::uint64_t{1} << 51), (std::uint64_t{1} << 52) - 1}) {
      codes.push_back((high << 52) | low);
    }
    for (int i = 0; i < 8; ++i) codes.push_back((high << 52) | (random() >> 12));
  }
  for (int i = 0; i < 100000; ++i) {  // near the numbers of the narrower formats
    const auto narrow = static_cast<std::uint32_t>(random());
    const auto wide = static_cast<double>(std::bit_cast<float>(narrow));
    codes.push_back(std::bit_cast<std::uint64_t>(wide) ^ (random() & 0x3fffffff));
  }
  return as_bytes(codes);
}

std::vector<std::byte> run(CastKernel kernel, DType from, DType to,
                           const std::vector<std::byte>& in) {
  const std::size_t count = in.size() / bytes_of(from, 1);
  std::vector<std::byte> out(count * bytes_of(to, 1));
  kernel(in.data(), out.data(), count);
  return out;
}

std::uint64_t element(const std::vector<std::byte>& bytes, DType dtype, std::size_t i) {
  std::uint64_t code = 0;
  std::memcpy(&code, bytes.data() + i * bytes_of(dtype, 1), bytes_of(dtype, 1));
  return code;
}

std::uint64_t cast_one(DType from, DType to, std::uint64_t code) {
  std::vector<std::byte> in(8);
  std::vector<std::byte> out(8);
  std::memcpy(in.data(), &code, 8);
  find_cast(from, to, KernelSet::Reference)(in.data(), out.data(), 1);
  return element(out, to, 0);
}

/// All pairs that have a cast.
std::vector<std::pair<DType, DType>> pairs() {
  std::vector<std::pair<DType, DType>> all;
  for (DType from : kFloats) {
    for (DType to : kFloats) {
      if (from != to) all.emplace_back(from, to);
    }
  }
  for (DType from : kF8) all.emplace_back(from, DType::F32);
  return all;
}

/// The number a code of an IEEE-like format stands for, by its definition; not for NaN.
double value_of(std::uint64_t code, int exponent_bits, int mantissa_bits, int bias,
                bool has_infinity) {
  const bool negative = ((code >> (exponent_bits + mantissa_bits)) & 1) != 0;
  const auto exponent =
      static_cast<int>((code >> mantissa_bits) & ((std::uint64_t{1} << exponent_bits) - 1));
  const auto mantissa = static_cast<double>(code & ((std::uint64_t{1} << mantissa_bits) - 1));
  const double unit = std::ldexp(1.0, -mantissa_bits);
  double magnitude = exponent == 0 ? std::ldexp(mantissa * unit, 1 - bias)
                                   : std::ldexp(1.0 + mantissa * unit, exponent - bias);
  if (has_infinity && exponent == (1 << exponent_bits) - 1) magnitude = HUGE_VAL;
  return negative ? -magnitude : magnitude;
}

TEST(Cast, ExistsForTheDocumentedPairsOnly) {
  std::size_t found = 0;
  for (int from = 0; from < kDTypeCount; ++from) {
    for (int to = 0; to < kDTypeCount; ++to) {
      const CastKernel plain =
          find_cast(static_cast<DType>(from), static_cast<DType>(to), KernelSet::Reference);
      const CastKernel fast = find_cast(static_cast<DType>(from), static_cast<DType>(to));
      EXPECT_EQ(plain == nullptr, fast == nullptr) << from << " to " << to;
      found += plain != nullptr;
    }
  }
  EXPECT_EQ(found, 17U + 8 * 4);
  for (const auto& [from, to] : pairs()) EXPECT_NE(find_cast(from, to), nullptr);
}

TEST(Cast, RoundsIntegersToNearestByWayOfF32) {
  struct Case {
    DType from;
    std::uint64_t integer;
    std::uint64_t f64, f32, f16, bf16;
  };
  const std::uint64_t minus_one = ~std::uint64_t{0};
  for (const Case& one : {
           Case{DType::I64, 0, 0, 0, 0, 0},
           Case{DType::I64, minus_one, 0xbff0000000000000, 0xbf800000, 0xbc00, 0xbf80},
           Case{DType::U64, minus_one, 0x43f0000000000000, 0x5f800000, 0x7c00, 0x5f80},
           Case{DType::I64, 257, 0x4070100000000000, 0x43808000, 0x5c04, 0x4380},  // ties to even
           Case{DType::I64, 259, 0x4070300000000000, 0x43818000, 0x5c0c, 0x4382},
           Case{DType::I64, (1 << 24) + 1, 0x4170000010000000, 0x4b800000, 0x7c00, 0x4b80},
           Case{DType::I64, (std::uint64_t{1} << 53) + 1, 0x4340000000000000, 0x5a000000, 0x7c00,
                0x5a00},
           // Rounded to F32 it lies between two numbers of BF16.
           Case{DType::I64, (std::uint64_t{1} << 32) + (1 << 24) + 1, 0x41f0100000100000,
                0x4f808000, 0x7c00, 0x4f80},
           Case{DType::I64, std::uint64_t{1} << 63, 0xc3e0000000000000, 0xdf000000, 0xfc00, 0xdf00},
           Case{DType::I8, 0x80, 0xc060000000000000, 0xc3000000, 0xd800, 0xc300},
           Case{DType::U8, 0x80, 0x4060000000000000, 0x43000000, 0x5800, 0x4300},
           Case{DType::I16, 0xffff, 0xbff0000000000000, 0xbf800000, 0xbc00, 0xbf80},
           Case{DType::U16, 0xffff, 0x40efffe000000000, 0x477fff00, 0x7c00, 0x4780},
           Case{DType::I32, 0xffffffff, 0xbff0000000000000, 0xbf800000, 0xbc00, 0xbf80},
           Case{DType::U32, 0xffffffff, 0x41efffffffe00000, 0x4f800000, 0x7c00, 0x4f80},
       }) {
    SCOPED_TRACE(testing::Message() << name(one.from) << " 0x" << std::hex << one.integer);
    EXPECT_EQ(cast_one(one.from, DType::F64, one.integer), one.f64);
    EXPECT_EQ(cast_one(one.from, DType::F32, one.integer), one.f32);
    EXPECT_EQ(cast_one(one.from, DType::F16, one.integer), one.f16);
    EXPECT_EQ(cast_one(one.from, DType::BF16, one.integer), one.bf16);
  }
}

TEST(Cast, FastGivesTheBitsOfTheReference) {
  for (const auto& [from, to] : pairs()) {
    const std::vector<std::byte> in = inputs(from);
    const std::vector<std::byte> expected =
        run(find_cast(from, to, KernelSet::Reference), from, to, in);
    for (const auto& [set, kernel] : fast_casts(from, to)) {
      const std::vector<std::byte> actual = run(kernel, from, to, in);
      if (actual == expected) continue;
      for (std::size_t i = 0; i < in.size() / bytes_of(from, 1); ++i) {
        ASSERT_EQ(element(actual, to, i), element(expected, to, i))
            << set << ": " << name(from) << " to " << name(to) << ": code 0x" << std::hex
            << element(in, from, i);
      }
    }
  }
}

TEST(Cast, FastTakesAnyCountAndAlignment) {
  constexpr std::byte kGuard{0xa5};
  for (const auto& [from, to] : pairs()) {
    const std::vector<std::byte> all = inputs(from);
    for (const auto& [set, kernel] : fast_casts(from, to)) {
      for (std::size_t count = 0; count <= 70; ++count) {
        const std::size_t shift = count % 3 + 1;
        const std::size_t in_bytes = count * bytes_of(from, 1);
        const std::size_t out_bytes = count * bytes_of(to, 1);
        std::vector<std::byte> in(shift + in_bytes);
        std::copy_n(all.end() - static_cast<std::ptrdiff_t>(in_bytes), in_bytes,
                    in.begin() + static_cast<std::ptrdiff_t>(shift));
        std::vector<std::byte> out(shift + out_bytes + 33, kGuard);
        std::vector<std::byte> expected(out_bytes);
        find_cast(from, to, KernelSet::Reference)(in.data() + shift, expected.data(), count);
        kernel(in.data() + shift, out.data() + shift, count);
        const auto begin = out.begin() + static_cast<std::ptrdiff_t>(shift);
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), begin))
            << set << ": " << name(from) << " to " << name(to) << ", " << count;
        ASSERT_EQ(std::count(out.begin(), begin, kGuard), static_cast<std::ptrdiff_t>(shift));
        ASSERT_EQ(std::count(out.end() - 33, out.end(), kGuard), 33) << name(to) << ", " << count;
      }
    }
  }
}

TEST(Cast, EveryF16AndF8CodeHasTheValueOfItsDefinition) {
  struct Layout {
    DType dtype;
    int exponent, mantissa, bias;
    bool infinity;
  };
  for (const Layout& f :
       {Layout{DType::F16, 5, 10, 15, true}, Layout{DType::BF16, 8, 7, 127, true},
        Layout{DType::F8E4M3, 4, 3, 7, false}, Layout{DType::F8E5M2, 5, 2, 15, true},
        Layout{DType::F8E4M3FNUZ, 4, 3, 8, false}, Layout{DType::F8E5M2FNUZ, 5, 2, 16, false}}) {
    const std::uint64_t codes = std::uint64_t{1} << bits(f.dtype);
    int nans = 0;
    for (std::uint64_t code = 0; code < codes; ++code) {
      const auto f32 = static_cast<std::uint32_t>(cast_one(f.dtype, DType::F32, code));
      const auto actual = std::bit_cast<float>(f32);
      if (std::isnan(actual)) {
        ++nans;
        continue;
      }
      const double expected = value_of(code, f.exponent, f.mantissa, f.bias, f.infinity);
      ASSERT_EQ(static_cast<double>(actual), expected) << name(f.dtype) << " " << code;
      ASSERT_EQ(std::signbit(actual), std::signbit(expected)) << name(f.dtype) << " " << code;
    }
    const bool fnuz = f.dtype == DType::F8E4M3FNUZ || f.dtype == DType::F8E5M2FNUZ;
    EXPECT_EQ(nans, fnuz                       ? 1
                    : f.dtype == DType::F8E4M3 ? 2
                                               : 2 * ((1 << f.mantissa) - 1))
        << name(f.dtype);
  }
}

TEST(Cast, E8M0IsAPowerOfTwoOrNan) {
  for (int code = 0; code < 255; ++code) {
    const auto f32 = static_cast<std::uint32_t>(
        cast_one(DType::F8E8M0, DType::F32, static_cast<std::uint64_t>(code)));
    EXPECT_EQ(std::bit_cast<float>(f32), std::ldexp(1.0F, code - 127)) << code;
  }
  EXPECT_EQ(cast_one(DType::F8E8M0, DType::F32, 255), 0x7fc00000U);
}

TEST(Cast, RoundsToTheNearestAndTiesToEven) {
  // By exact comparison: no neighbour of the result is nearer, and a tie has an even code.
  for (DType to : {DType::F16, DType::BF16}) {
    const std::vector<std::byte> in = inputs(DType::F32);
    const std::vector<std::byte> out =
        run(find_cast(DType::F32, to, KernelSet::Reference), DType::F32, to, in);
    const int exponent = to == DType::F16 ? 5 : 8;
    const int mantissa = 15 - exponent;
    const int bias = (1 << (exponent - 1)) - 1;
    const std::uint64_t infinity = ((std::uint64_t{1} << exponent) - 1) << mantissa;
    // What comes after the largest number, were there no infinity; RNE treats infinity as it.
    const double beyond = std::ldexp(1.0, bias + 1);
    const auto number = [&](std::uint64_t code) {
      return code == infinity ? beyond : value_of(code, exponent, mantissa, bias, true);
    };
    for (std::size_t i = 0; i < in.size() / 4; ++i) {
      const auto value =
          std::bit_cast<float>(static_cast<std::uint32_t>(element(in, DType::F32, i)));
      if (std::isnan(value)) continue;
      const std::uint64_t code = element(out, to, i);
      ASSERT_EQ((code & 0x8000) != 0, std::signbit(value)) << value;
      const std::uint64_t magnitude = code & 0x7fff;
      ASSERT_LE(magnitude, infinity) << value;
      const double exact = std::min(static_cast<double>(std::fabs(value)), beyond * 2);
      const double error = std::fabs(exact - number(magnitude));
      if (magnitude < infinity) {
        const double up = std::fabs(number(magnitude + 1) - exact);
        ASSERT_TRUE(error < up || (error == up && magnitude % 2 == 0)) << name(to) << " " << value;
      }
      if (magnitude > 0 && !(magnitude == infinity && exact >= beyond)) {
        const double down = std::fabs(exact - number(magnitude - 1));
        ASSERT_TRUE(error < down || (error == down && magnitude % 2 == 0))
            << name(to) << " " << value;
      }
    }
  }
}

TEST(Cast, F64GoesByWayOfF32) {
  // Just above a tie of F16: one rounding goes up; F32 drops the excess, and the tie goes to even.
  const double above_tie = 1.0 + std::ldexp(1.0, -11) + std::ldexp(1.0, -40);
  EXPECT_EQ(cast_one(DType::F64, DType::F16, std::bit_cast<std::uint64_t>(above_tie)), 0x3c00U);
  const double above_bf16_tie = 1.0 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40);
  EXPECT_EQ(cast_one(DType::F64, DType::BF16, std::bit_cast<std::uint64_t>(above_bf16_tie)),
            0x3f80U);
}

TEST(Cast, ARoundedNanKeepsItsSignAndNoPayload) {
  for (std::uint32_t nan : {0x7fc00000U, 0x7f800001U, 0x7fffffffU, 0x7fbfffffU}) {
    EXPECT_EQ(cast_one(DType::F32, DType::BF16, nan), 0x7fc0U);
    EXPECT_EQ(cast_one(DType::F32, DType::BF16, nan | 0x80000000), 0xffc0U);
    EXPECT_EQ(cast_one(DType::F32, DType::F16, nan), 0x7e00U);
    EXPECT_EQ(cast_one(DType::F32, DType::F16, nan | 0x80000000), 0xfe00U);
  }
  for (std::uint64_t nan : {0x7ff8000000000000U, 0x7ff0000000000001U, 0x7fffffffffffffffU}) {
    const std::uint64_t negative = nan | 0x8000000000000000;
    EXPECT_EQ(cast_one(DType::F64, DType::F32, nan), 0x7fc00000U);
    EXPECT_EQ(cast_one(DType::F64, DType::F32, negative), 0xffc00000U);
    EXPECT_EQ(cast_one(DType::F64, DType::BF16, negative), 0xffc0U);
    EXPECT_EQ(cast_one(DType::F64, DType::F16, negative), 0xfe00U);
  }
  EXPECT_EQ(cast_one(DType::F16, DType::BF16, 0xfc01), 0xffc0U);
  EXPECT_EQ(cast_one(DType::BF16, DType::F16, 0x7f81), 0x7e00U);
}

TEST(Cast, AWideningCastKeepsSignAndPayloadOfANan) {
  EXPECT_EQ(cast_one(DType::BF16, DType::F32, 0xff81), 0xff810000U);
  EXPECT_EQ(cast_one(DType::F16, DType::F32, 0x7c01), 0x7f802000U);
  EXPECT_EQ(cast_one(DType::F16, DType::F32, 0xffff), 0xffffe000U);
  EXPECT_EQ(cast_one(DType::F16, DType::F64, 0x7c01), 0x7ff0040000000000U);
  EXPECT_EQ(cast_one(DType::BF16, DType::F64, 0xffc1), 0xfff8200000000000U);
  EXPECT_EQ(cast_one(DType::F32, DType::F64, 0x7f800001), 0x7ff0000020000000U);
  EXPECT_EQ(cast_one(DType::F8E5M2, DType::F32, 0x7d), 0x7fa00000U);
  EXPECT_EQ(cast_one(DType::F8E5M2, DType::F32, 0xff), 0xffe00000U);
  EXPECT_EQ(cast_one(DType::F8E4M3, DType::F32, 0x7f), 0x7fc00000U);
  EXPECT_EQ(cast_one(DType::F8E4M3, DType::F32, 0xff), 0xffc00000U);
  EXPECT_EQ(cast_one(DType::F8E4M3FNUZ, DType::F32, 0x80), 0xffc00000U);
  EXPECT_EQ(cast_one(DType::F8E5M2FNUZ, DType::F32, 0x80), 0xffc00000U);
}

}  // namespace
}  // namespace ckfs
