// The fast kernels of tensor/quantize.h: the same arithmetic without branches, in loops over 16
// elements that a compiler makes vectors of. Included once for each set of instructions, in a
// namespace of its own (CKFS_LANES) and, on x86, behind a target pragma; so it has no include
// guard, and uses nothing of the standard library that a linker might take from here for others.
//
// NaN apart: codes of NaN are those of the definition, too.

namespace ckfs::CKFS_LANES {
namespace {

constexpr std::size_t kLanes = 16;
constexpr std::int32_t kMagnitude = 0x7fffffff;
constexpr std::int32_t kInfinityBits = 0x7f800000;

// Signed throughout: AVX2 compares no unsigned numbers.
inline std::int32_t bits(float value) {
  return __builtin_bit_cast(std::int32_t, value);
}
inline float number(std::int32_t bits) {
  return __builtin_bit_cast(float, bits);
}
inline std::int32_t least(std::int32_t a, std::int32_t b) {
  return a < b ? a : b;
}

template <DType kFrom>
struct Lane;

template <>
struct Lane<DType::F32> {
  using Code = std::uint32_t;
  static float widen(Code code) { return number(static_cast<std::int32_t>(code)); }
  static float rounded(float value) { return value; }
  static constexpr Code kMagnitudes = 0x7fffffff;
};

template <>
struct Lane<DType::BF16> {
  using Code = std::uint16_t;
  static float widen(Code code) {
    return number(static_cast<std::int32_t>(std::uint32_t{code} << 16));
  }
  static float rounded(float value) {
    const std::int32_t in = bits(value);
    const std::int32_t magnitude = in & kMagnitude;
    const std::int32_t finite = least(magnitude, kInfinityBits);
    const std::int32_t out = (finite + 0x7fff + ((finite >> 16) & 1)) & ~0xffff;
    return number((magnitude > kInfinityBits ? magnitude : out) | (in & ~kMagnitude));
  }
  static constexpr Code kMagnitudes = 0x7fff;
};

template <>
struct Lane<DType::F16> {
  using Code = std::uint16_t;
  static float widen(Code code) {
    const std::int32_t sign = static_cast<std::int32_t>(std::uint32_t{code & 0x8000U} << 16);
    const std::int32_t magnitude = code & 0x7fff;
    // Normal numbers change their bias; infinity and NaN have the highest exponent there, too; a
    // subnormal is a count of 2^-24.
    const std::int32_t normal = (magnitude << 13) + (magnitude >= 0x7c00 ? 0x70000000 : 0x38000000);
    const std::int32_t small = bits(static_cast<float>(magnitude) * 0x1p-24F);
    return number((magnitude < 0x400 ? small : normal) | sign);
  }
  static float rounded(float value) {
    const std::int32_t in = bits(value);
    const std::int32_t sign = in & ~kMagnitude;
    const std::int32_t magnitude = in & kMagnitude;
    const std::int32_t finite = least(magnitude, kInfinityBits);
    const std::int32_t normal = (finite + 0xfff + ((finite >> 13) & 1)) & ~0x1fff;
    const std::int32_t large = normal >= 0x47800000 ? kInfinityBits : normal;
    // A sum with 0.5 has no place below 2^-24.
    const std::int32_t small = bits((number(magnitude) + 0.5F) - 0.5F);
    const std::int32_t out = magnitude < 0x38800000 ? small : large;
    return number((magnitude > kInfinityBits ? magnitude : out) | sign);
  }
  static constexpr Code kMagnitudes = 0x7fff;
};

template <CodeKind kKind>
inline std::int32_t code_of(float value) {
  const std::int32_t in = bits(value);
  const std::int32_t magnitude = in & kMagnitude;
  if constexpr (kKind == CodeKind::E4M3) {
    const std::int32_t clamped = least(magnitude, 0x43e00000);  // 448
    const std::int32_t normal = ((clamped + 0x7ffff + ((clamped >> 20) & 1)) >> 20) - (120 << 3);
    // A sum with 2^14 has no place below 2^-9.
    const std::int32_t small = bits(number(clamped) + 0x1p14F) - 0x46800000;
    const std::int32_t code = (clamped < 0x3c800000 ? small : normal) | ((in >> 24) & 0x80);
    return magnitude > kInfinityBits ? 0x7f : code;
  } else if constexpr (kKind == CodeKind::I8 || kKind == CodeKind::I4) {
    constexpr float kLow = kKind == CodeKind::I8 ? -128.0F : -8.0F;
    constexpr float kHigh = kKind == CodeKind::I8 ? 127.0F : 7.0F;
    constexpr std::int32_t kAdded = kKind == CodeKind::I8 ? 0 : 8;
    const float above = value < kLow ? kLow : value;
    const float clamped = above > kHigh ? kHigh : above;
    // A sum with 1.5 * 2^23 has no place below 1.
    const std::int32_t whole = bits(clamped + 0x1.8p23F) - 0x4b400000;
    return ((magnitude > kInfinityBits ? 0 : whole) + kAdded) & 0xff;
  } else if constexpr (kKind == CodeKind::E2M1) {
    const float size = number(magnitude);
    const std::int32_t code = (size > 0.25F ? 1 : 0) + (size >= 0.75F ? 1 : 0) +
                              (size > 1.25F ? 1 : 0) + (size >= 1.75F ? 1 : 0) +
                              (size > 2.5F ? 1 : 0) + (size >= 3.5F ? 1 : 0) +
                              (size > 5.0F ? 1 : 0);
    return code | (value < 0 ? 8 : 0);
  } else {
    std::int32_t code = 0;
    for (int i = 0; i < 15; ++i) {
      code += value > (kNf4Table[i] + kNf4Table[i + 1]) / 2 ? 1 : 0;
    }
    return code;
  }
}

template <DType kFrom, CodeArithmetic kArithmetic>
inline float before_code(float value, float scale, float zero) {
  using Here = Lane<kFrom>;
  if constexpr (kArithmetic == CodeArithmetic::Product) return value * scale;
  if constexpr (kArithmetic == CodeArithmetic::Quotient) return value / scale;
  if constexpr (kArithmetic == CodeArithmetic::RoundedQuotient) return Here::rounded(value / scale);
  return Here::rounded(Here::rounded(value / scale) + zero);
}

/// `count` elements with one scale.
template <DType kFrom, CodeKind kKind, CodeArithmetic kArithmetic>
inline void quantize_group(const std::byte* in, float scale, float zero, std::byte* out,
                           std::size_t count) {
  using Code = typename Lane<kFrom>::Code;
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Code codes[kLanes];
    float values[kLanes];
    std::int32_t wide[kLanes];
    std::uint8_t made[kLanes];
    __builtin_memcpy(codes, in + i * sizeof(Code), sizeof(codes));
    // A loop for each width: a compiler makes vectors of them that it does not make of one.
    for (std::size_t k = 0; k < kLanes; ++k) values[k] = Lane<kFrom>::widen(codes[k]);
    for (std::size_t k = 0; k < kLanes; ++k) {
      wide[k] = code_of<kKind>(before_code<kFrom, kArithmetic>(values[k], scale, zero));
    }
    for (std::size_t k = 0; k < kLanes; ++k) made[k] = static_cast<std::uint8_t>(wide[k]);
    __builtin_memcpy(out + i, made, sizeof(made));
  }
  for (; i < count; ++i) {
    Code code;
    __builtin_memcpy(&code, in + i * sizeof(Code), sizeof(code));
    const auto made = static_cast<std::uint8_t>(
        code_of<kKind>(before_code<kFrom, kArithmetic>(Lane<kFrom>::widen(code), scale, zero)));
    __builtin_memcpy(out + i, &made, 1);
  }
}

template <DType kFrom, CodeKind kKind, CodeArithmetic kArithmetic>
void quantize_elements(const std::byte* in, const GroupScales& scales, std::byte* out,
                       std::size_t count) {
  constexpr bool kHasZero = kArithmetic == CodeArithmetic::RoundedSum;
  std::size_t group = scales.first / scales.group;
  std::size_t left = scales.group - scales.first % scales.group;
  for (std::size_t i = 0; i < count; ++group, left = scales.group) {
    const std::size_t here = left < count - i ? left : count - i;
    quantize_group<kFrom, kKind, kArithmetic>(in + i * sizeof(typename Lane<kFrom>::Code),
                                              scales.scales[group],
                                              kHasZero ? scales.zeros[group] : 0.0F, out + i, here);
    i += here;
  }
}

template <DType kFrom>
void maxima_of(const std::byte* in, std::size_t group, float* maxima, std::size_t count) {
  using Code = typename Lane<kFrom>::Code;
  for (std::size_t i = 0; i < count; ++maxima) {
    const std::size_t here = group < count - i ? group : count - i;
    // Magnitudes are ordered as their bits are, NaN above infinity.
    Code most = 0;
    std::size_t k = 0;
    for (; k + 4 * kLanes <= here; k += 4 * kLanes) {
      Code codes[4 * kLanes];
      __builtin_memcpy(codes, in + (i + k) * sizeof(Code), sizeof(codes));
      for (std::size_t n = 0; n < 4 * kLanes; ++n) {
        const auto code = static_cast<Code>(codes[n] & Lane<kFrom>::kMagnitudes);
        most = code > most ? code : most;
      }
    }
    for (; k < here; ++k) {
      Code code;
      __builtin_memcpy(&code, in + (i + k) * sizeof(Code), sizeof(code));
      code = static_cast<Code>(code & Lane<kFrom>::kMagnitudes);
      most = code > most ? code : most;
    }
    const float value = Lane<kFrom>::widen(most);
    const bool is_nan = value != value;
    if (is_nan || value > *maxima) *maxima = value;
    i += here;
  }
}

}  // namespace

QuantizeKernel quantize(DType from, CodeKind kind, CodeArithmetic arithmetic) {
  return ckfs::quantize::select_quantize(
      from, kind, arithmetic, []<DType kFrom, CodeKind kKind, CodeArithmetic kArithmetic>() {
        return QuantizeKernel{quantize_elements<kFrom, kKind, kArithmetic>};
      });
}

MaximaKernel maxima(DType from) {
  return select<DType::BF16, DType::F16, DType::F32>(
      from, []<DType kFrom>() { return MaximaKernel{maxima_of<kFrom>}; });
}

}  // namespace ckfs::CKFS_LANES
