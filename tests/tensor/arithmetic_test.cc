// Steps: every F16 and BF16 code against exact arithmetic in F64, and the special values by hand.
#include "tensor/arithmetic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "tensor/kernel.h"

namespace ckfs {
namespace {

struct Codes {
  DType dtype;
  std::uint64_t one, minus_zero, subnormal, signalling_nan, negative_nan, quiet_nan, infinity;
};
constexpr Codes kCodes[] = {
    {DType::F64, 0x3ff0000000000000, 0x8000000000000000, 0x800fffffffffffff, 0x7ff0000000000001,
     0xfff8000000000123, 0x7ff8000000000000, 0x7ff0000000000000},
    {DType::F32, 0x3f800000, 0x80000000, 0x807fffff, 0x7f800001, 0xffc00123, 0x7fc00000,
     0x7f800000},
    {DType::F16, 0x3c00, 0x8000, 0x83ff, 0x7c01, 0xfe12, 0x7e00, 0x7c00},
    {DType::BF16, 0x3f80, 0x8000, 0x807f, 0x7f81, 0xffc3, 0x7fc0, 0x7f80},
};

template <typename Step>
std::uint64_t apply(DType dtype, std::uint64_t code, Step step) {
  std::byte value[8];
  std::memcpy(value, &code, sizeof(value));
  step(value);
  std::uint64_t result = 0;
  std::memcpy(&result, value, static_cast<std::size_t>(bits(dtype)) / 8);
  return result;
}

/// The F32 of a 16-bit code, or of an F32 code.
float to_f32(DType dtype, std::uint32_t code) {
  if (dtype == DType::F32) return std::bit_cast<float>(code);
  float value = 0;
  find_cast(dtype, DType::F32, KernelSet::Reference)(
      std::as_bytes(std::span(&code, 1)).data(),
      std::as_writable_bytes(std::span(&value, 1)).data(), 1);
  return value;
}

std::uint16_t from_f32(DType dtype, float value) {
  std::uint16_t code = 0;
  find_cast(DType::F32, dtype, KernelSet::Reference)(
      std::as_bytes(std::span(&value, 1)).data(),
      std::as_writable_bytes(std::span(&code, 1)).data(), 1);
  return code;
}

TEST(Arithmetic, MultiplyAndAddOfEvery16BitCodeAreRoundedFromF32) {
  for (DType dtype : {DType::F16, DType::BF16}) {
    for (double operand : {0.1, -3.0, 1.0 / 3.0, 65504.0, 0x1p-30}) {
      std::vector<std::uint16_t> products(65536);
      for (std::size_t i = 0; i < products.size(); ++i) products[i] = static_cast<std::uint16_t>(i);
      std::vector<std::uint16_t> sums = products;
      multiply(dtype, operand, std::as_writable_bytes(std::span(products)).data(), 65536);
      add(dtype, operand, std::as_writable_bytes(std::span(sums)).data(), 65536);
      for (std::uint32_t i = 0; i < 65536; ++i) {
        const float value = to_f32(dtype, i);
        if (std::isnan(value)) continue;
        const double exact_operand = static_cast<float>(operand);
        // A product of two F32 is exact in F64; a sum is rounded twice only where that is harmless,
        // because F64 has more than twice the digits.
        ASSERT_EQ(products[i], from_f32(dtype, static_cast<float>(value * exact_operand)))
            << name(dtype) << " " << i << " * " << operand;
        ASSERT_EQ(sums[i], from_f32(dtype, static_cast<float>(value + exact_operand)))
            << name(dtype) << " " << i << " + " << operand;
      }
    }
  }
}

TEST(Arithmetic, WideFloatsAreComputedInTheirOwnDtype) {
  const std::uint64_t third = std::bit_cast<std::uint64_t>(1.0 / 3.0);
  EXPECT_EQ(apply(DType::F64, third, [](std::byte* v) { multiply(DType::F64, 0.1, v, 1); }),
            std::bit_cast<std::uint64_t>(1.0 / 3.0 * 0.1));
  EXPECT_EQ(apply(DType::F32, std::bit_cast<std::uint32_t>(1.0F / 3.0F),
                  [](std::byte* v) { add(DType::F32, 0.1, v, 1); }),
            std::bit_cast<std::uint32_t>(1.0F / 3.0F + 0.1F));
}

TEST(Arithmetic, AComputedNanKeepsTheSignOfItsElement) {
  for (const Codes& c : kCodes) {
    const std::uint64_t sign = c.minus_zero;
    const auto times = [&](std::uint64_t code, double operand) {
      return apply(c.dtype, code, [&](std::byte* v) { multiply(c.dtype, operand, v, 1); });
    };
    EXPECT_EQ(times(c.negative_nan, 1.0), c.quiet_nan | sign) << name(c.dtype);
    EXPECT_EQ(times(c.signalling_nan, 1.0), c.quiet_nan) << name(c.dtype);
    EXPECT_EQ(times(c.infinity, 0.0), c.quiet_nan) << name(c.dtype);
    EXPECT_EQ(times(c.infinity | sign, 0.0), c.quiet_nan | sign) << name(c.dtype);
    EXPECT_EQ(times(c.minus_zero, std::numeric_limits<double>::infinity()), c.quiet_nan | sign);
  }
}

TEST(Arithmetic, FlushTakesSubnormalsOnlyAndKeepsTheirSign) {
  for (const Codes& c : kCodes) {
    const auto flushed = [&](std::uint64_t code) {
      return apply(c.dtype, code, [&](std::byte* v) { flush_subnormals(c.dtype, v, 1); });
    };
    EXPECT_EQ(flushed(c.subnormal), c.minus_zero) << name(c.dtype);
    EXPECT_EQ(flushed(1), 0U) << name(c.dtype);
    const std::uint64_t least_normal = (c.subnormal ^ c.minus_zero) + 1;
    for (std::uint64_t kept : {c.one, c.minus_zero, c.signalling_nan, c.infinity, least_normal}) {
      EXPECT_EQ(flushed(kept), kept) << name(c.dtype);
    }
  }
}

TEST(Arithmetic, QuietNansAreWhatACastToAWiderDtypeAndBackLeaves) {
  for (const auto& [dtype, wide] : {std::pair{DType::F16, DType::F32},
                                    {DType::F16, DType::F64},
                                    {DType::BF16, DType::F32},
                                    {DType::BF16, DType::F64},
                                    {DType::F32, DType::F64}}) {
    // Every code of 16 bits; of F32, as many that have all exponents.
    const std::size_t width = bytes_of(dtype, 1);
    std::vector<std::byte> codes(width << 16);
    for (std::uint32_t i = 0; i < 1 << 16; ++i) {
      const std::uint32_t code = width == 2 ? i : i << 16 | (i * 40503U & 0xffff);
      std::memcpy(&codes[i * width], &code, width);
    }
    std::vector<std::byte> there(bytes_of(wide, 1) << 16);
    std::vector<std::byte> back(codes.size());
    find_cast(dtype, wide, KernelSet::Reference)(codes.data(), there.data(), 1 << 16);
    find_cast(wide, dtype, KernelSet::Reference)(there.data(), back.data(), 1 << 16);
    quiet_nans(dtype, codes.data(), 1 << 16);
    EXPECT_TRUE(codes == back) << name(dtype) << " by " << name(wide);
  }
}

TEST(Arithmetic, ANanIsQuietedWhereverItLies) {
  constexpr std::uint16_t kSignalling = 0xff81, kQuiet = 0xffc0, kOne = 0x3f80;
  for (const std::size_t count : {1U, 7U, 1023U, 1024U, 1025U, 5000U}) {
    for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
      std::vector<std::uint16_t> codes(count, kOne);
      codes[at] = kSignalling;
      quiet_nans(DType::BF16, reinterpret_cast<std::byte*>(codes.data()), count);
      EXPECT_EQ(codes[at], kQuiet) << count << " " << at;
      EXPECT_EQ(std::ranges::count(codes, kOne), static_cast<std::ptrdiff_t>(count - 1));
    }
  }
}

TEST(Arithmetic, CanonicalNanChangesNansOnly) {
  for (const Codes& c : kCodes) {
    const auto canonical = [&](std::uint64_t code) {
      return apply(c.dtype, code, [&](std::byte* v) { canonical_nan(c.dtype, v, 1); });
    };
    EXPECT_EQ(canonical(c.negative_nan), c.quiet_nan) << name(c.dtype);
    EXPECT_EQ(canonical(c.signalling_nan), c.quiet_nan) << name(c.dtype);
    for (std::uint64_t kept : {c.one, c.minus_zero, c.subnormal, c.infinity}) {
      EXPECT_EQ(canonical(kept), kept) << name(c.dtype);
    }
  }
}

/// The bits that a NaN of `from` gets in `to`.
std::uint64_t nan_in(DType from, std::uint64_t code, DType to) {
  std::uint64_t cast = 0;
  keep_payloads(from, reinterpret_cast<const std::byte*>(&code), to,
                reinterpret_cast<std::byte*>(&cast), 1);
  return cast;
}

TEST(Arithmetic, PayloadsAreKeptFromTheFirstBit) {
  EXPECT_EQ(nan_in(DType::BF16, 0xffc1, DType::F16), 0xfe08U);
  EXPECT_EQ(nan_in(DType::BF16, 0x7fc0, DType::F16), 0x7e00U);
  EXPECT_EQ(nan_in(DType::BF16, 0x7f81, DType::F16), 0x7c08U);
  EXPECT_EQ(nan_in(DType::F32, 0xff800001, DType::F16), 0xfc01U);
  EXPECT_EQ(nan_in(DType::F32, 0x7fffffff, DType::F16), 0x7fffU);
  EXPECT_EQ(nan_in(DType::F16, 0xfe08, DType::BF16), 0xffc1U);
  EXPECT_EQ(nan_in(DType::F16, 0x7c01, DType::F32), 0x7f802000U);
  EXPECT_EQ(nan_in(DType::F64, 0xfff8000000000001, DType::BF16), 0xffc0U);
  // What is no NaN is left as it was cast.
  EXPECT_EQ(nan_in(DType::BF16, 0x7f80, DType::F16), 0U);
  EXPECT_EQ(nan_in(DType::F32, 0x3f800000, DType::F16), 0U);
}

TEST(Arithmetic, OneIsTheIdentityOfAllButNans) {
  for (const Codes& c : kCodes) {
    for (std::uint64_t code : {c.one, c.minus_zero, c.subnormal, c.infinity}) {
      EXPECT_EQ(apply(c.dtype, code, [&](std::byte* v) { multiply(c.dtype, 1.0, v, 1); }), code);
    }
  }
}

}  // namespace
}  // namespace ckfs
