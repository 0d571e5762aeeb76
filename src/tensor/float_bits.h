// One element at a time, as bits: what each float format means, in integer arithmetic. The
// definition that both kernel sets follow, and what converts single numbers elsewhere.
//
// F32 bits are the common form: every format widens to it exactly (F64 rounds to it).
#pragma once

#include <bit>
#include <cstdint>

#include "tensor/dtype.h"

namespace ckfs::bits_of {

inline constexpr std::uint32_t kF32Infinity = 0x7f800000;
inline constexpr std::uint32_t kF32Nan = 0x7fc00000;

constexpr bool is_f32_nan(std::uint32_t f32) {
  return (f32 & 0x7fffffff) > kF32Infinity;
}

/// The value (-1)^sign * significand * 2^exponent. Requires: it is a normal F32 or zero, and
/// significand < 2^24.
constexpr std::uint32_t f32_from_parts(std::uint32_t sign, std::uint32_t significand,
                                       int exponent) {
  if (significand == 0) return sign << 31;
  const int top = 31 - std::countl_zero(significand);
  const std::uint32_t fraction = (significand << (23 - top)) & 0x7fffff;
  return (sign << 31) | (static_cast<std::uint32_t>(exponent + top + 127) << 23) | fraction;
}

/// A format of one sign bit, kExponent exponent bits and kMantissa mantissa bits: its finite value
/// when every exponent code is finite.
template <int kExponent, int kMantissa, int kBias>
constexpr std::uint32_t widen_finite(std::uint32_t code) {
  const std::uint32_t sign = (code >> (kExponent + kMantissa)) & 1;
  const std::uint32_t exponent = (code >> kMantissa) & ((1U << kExponent) - 1);
  const std::uint32_t mantissa = code & ((1U << kMantissa) - 1);
  if (exponent == 0) return f32_from_parts(sign, mantissa, 1 - kBias - kMantissa);
  return f32_from_parts(sign, mantissa | (1U << kMantissa),
                        static_cast<int>(exponent) - kBias - kMantissa);
}

/// The same where the highest exponent code means infinity and NaN.
template <int kExponent, int kMantissa, int kBias>
constexpr std::uint32_t widen_ieee(std::uint32_t code) {
  constexpr std::uint32_t kTop = (1U << kExponent) - 1;
  if (((code >> kMantissa) & kTop) != kTop) return widen_finite<kExponent, kMantissa, kBias>(code);
  const std::uint32_t sign = (code >> (kExponent + kMantissa)) & 1;
  const std::uint32_t payload = code & ((1U << kMantissa) - 1);
  return (sign << 31) | kF32Infinity | (payload << (23 - kMantissa));
}

/// One format: the unsigned integer its code fits in, and the way to and from the bits of an F32.
template <DType kDType>
struct Format;

template <>
struct Format<DType::F32> {
  using Code = std::uint32_t;
  static constexpr std::uint32_t widen(Code code) { return code; }
  static constexpr Code narrow(std::uint32_t f32) { return f32; }
};

template <>
struct Format<DType::BF16> {
  using Code = std::uint16_t;
  static constexpr std::uint32_t widen(Code code) { return std::uint32_t{code} << 16; }
  static constexpr Code narrow(std::uint32_t f32) {
    if (is_f32_nan(f32)) return static_cast<Code>(((f32 >> 16) & 0x8000) | 0x7fc0);
    // Half of the last kept place, less one where that place is even: a tie then rounds to even,
    // and a carry out of the mantissa gives the next exponent, at last infinity.
    return static_cast<Code>((f32 + 0x7fff + ((f32 >> 16) & 1)) >> 16);
  }
};

template <>
struct Format<DType::F16> {
  using Code = std::uint16_t;
  static constexpr std::uint32_t widen(Code code) { return widen_ieee<5, 10, 15>(code); }
  static constexpr Code narrow(std::uint32_t f32) {
    const std::uint32_t sign = (f32 >> 16) & 0x8000;
    const std::uint32_t magnitude = f32 & 0x7fffffff;
    if (magnitude > kF32Infinity) return static_cast<Code>(sign | 0x7e00);
    if (magnitude >= 0x47800000) return static_cast<Code>(sign | 0x7c00);  // 2^16 and more
    if (magnitude >= 0x38800000) {                                         // 2^-14: normal in F16
      const std::uint32_t rebiased = magnitude - ((127U - 15U) << 23);
      return static_cast<Code>(sign | ((rebiased + 0xfff + ((rebiased >> 13) & 1)) >> 13));
    }
    // Subnormal in F16: a count of 2^-24. Below half of that everything rounds to zero.
    const std::uint32_t exponent = magnitude >> 23;
    if (exponent < 102) return static_cast<Code>(sign);
    const std::uint32_t significand = (magnitude & 0x7fffff) | 0x800000;
    const std::uint32_t shift = 126 - exponent;
    const std::uint32_t kept = significand >> shift;
    const std::uint32_t rest = significand & ((1U << shift) - 1);
    const std::uint32_t half = 1U << (shift - 1);
    const bool up = rest > half || (rest == half && (kept & 1) != 0);
    return static_cast<Code>(sign | (kept + (up ? 1 : 0)));
  }
};

template <>
struct Format<DType::F64> {
  using Code = std::uint64_t;
  static constexpr std::uint32_t widen(Code code) {  // rounds, as the way by F32 wants it
    const auto sign = static_cast<std::uint32_t>(code >> 63) << 31;
    if ((code & 0x7fffffffffffffff) > 0x7ff0000000000000) return sign | kF32Nan;
    return std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(code)));
  }
  static constexpr Code narrow(std::uint32_t f32) {  // exact
    if (is_f32_nan(f32)) {
      const Code sign = static_cast<Code>(f32 >> 31) << 63;
      return sign | 0x7ff0000000000000 | (static_cast<Code>(f32 & 0x7fffff) << 29);
    }
    return std::bit_cast<Code>(static_cast<double>(std::bit_cast<float>(f32)));
  }
};

template <>
struct Format<DType::F8E4M3> {
  using Code = std::uint8_t;
  static constexpr std::uint32_t widen(Code code) {
    if ((code & 0x7f) == 0x7f) return (std::uint32_t{code} >> 7 << 31) | kF32Nan;
    return widen_finite<4, 3, 7>(code);
  }
};

template <>
struct Format<DType::F8E5M2> {
  using Code = std::uint8_t;
  static constexpr std::uint32_t widen(Code code) { return widen_ieee<5, 2, 15>(code); }
};

template <>
struct Format<DType::F8E4M3FNUZ> {
  using Code = std::uint8_t;
  static constexpr std::uint32_t widen(Code code) {
    return code == 0x80 ? 0x80000000 | kF32Nan : widen_finite<4, 3, 8>(code);
  }
};

template <>
struct Format<DType::F8E5M2FNUZ> {
  using Code = std::uint8_t;
  static constexpr std::uint32_t widen(Code code) {
    return code == 0x80 ? 0x80000000 | kF32Nan : widen_finite<5, 2, 16>(code);
  }
};

template <>
struct Format<DType::F8E8M0> {
  using Code = std::uint8_t;
  static constexpr std::uint32_t widen(Code code) {
    if (code == 0xff) return kF32Nan;
    return code == 0 ? 0x00400000 : std::uint32_t{code} << 23;  // 2^-127 is subnormal in F32
  }
};

}  // namespace ckfs::bits_of
