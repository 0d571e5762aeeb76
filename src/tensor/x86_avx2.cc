// Casts and scaled decoding with AVX2 and F16C, 16 elements at a time; what is left at the end goes
// to the reference kernel. Every function is compiled for its own target, so that the program still
// starts on CPUs without these instructions (dispatch.cc chooses); FMA is left out of the target,
// because a fused product would round once where the reference tools round twice.
//
// F8 goes by way of F16: an F8 code moved into the high byte of an F16 is the same number up to a
// power of two, F16C makes an F32 of it without a stall at subnormals, and that power of two is
// folded into the scale, where it is exact. NaN codes become F16 NaNs before, so that nothing has
// to be repaired after the product.
#ifdef __x86_64__
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

#include "tensor/float_bits.h"
#include "tensor/kernel_sets.h"
#include "tensor/select.h"

#define CKFS_AVX2 __attribute__((target("avx2,f16c"))) inline

// NOLINTBEGIN(portability-simd-intrinsics): this file is the non-portable half of a pair.
namespace ckfs::avx2 {
namespace {

constexpr std::size_t kLanes = 16;

/// 16 elements as F32.
struct Lanes {
  __m256 low;
  __m256 high;
};

CKFS_AVX2 __m128i load_128(const std::byte* at) {
  __m128i value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}
CKFS_AVX2 __m256i load_256(const std::byte* at) {
  __m256i value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}
CKFS_AVX2 void store_256(std::byte* at, __m256i value) {
  std::memcpy(at, &value, sizeof(value));
}

/// Every NaN as the quiet one with its sign and no payload.
CKFS_AVX2 __m256 with_plain_nans(__m256 value) {
  const __m256 is_nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  const __m256 sign = _mm256_and_ps(value, _mm256_set1_ps(-0.0F));
  const __m256 nan = _mm256_or_ps(sign, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)));
  return _mm256_blendv_ps(value, nan, is_nan);
}

/// F16 to F32. The instruction makes signalling NaNs quiet; a widening cast must not.
template <bool kKeepSignalling>
CKFS_AVX2 __m256 widen_f16(__m128i half) {
  const __m256 wide = _mm256_cvtph_ps(half);
  if constexpr (!kKeepSignalling) return wide;
  const __m256i shifted = _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 13);
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(wide, wide, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_and_si256(is_nan, _mm256_set1_epi32(0x00400000));
  const __m256i added = _mm256_andnot_si256(shifted, quiet);
  return _mm256_castsi256_ps(_mm256_andnot_si256(added, _mm256_castps_si256(wide)));
}

/// 8 F32, no payload in a NaN, to the nearest BF16, each in the low half of its lane.
CKFS_AVX2 __m256i round_to_bf16(__m256 value) {
  const __m256i f32 = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(f32, 16), _mm256_set1_epi32(1));
  const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  return _mm256_srli_epi32(_mm256_add_epi32(f32, half), 16);
}

/// 4 F32 to F64, signalling NaNs kept so.
CKFS_AVX2 __m256i widen_f32(__m128 value) {
  const __m256d wide = _mm256_cvtps_pd(value);
  const __m256i shifted = _mm256_slli_epi64(_mm256_cvtepu32_epi64(_mm_castps_si128(value)), 29);
  const __m256i is_nan = _mm256_castpd_si256(_mm256_cmp_pd(wide, wide, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_and_si256(is_nan, _mm256_set1_epi64x(0x0008000000000000));
  const __m256i added = _mm256_andnot_si256(shifted, quiet);
  return _mm256_andnot_si256(added, _mm256_castpd_si256(wide));
}

/// 4 F64 to F32; a NaN keeps its sign.
CKFS_AVX2 __m128 round_f64(const std::byte* in) {
  return _mm256_cvtpd_ps(_mm256_castsi256_pd(load_256(in)));
}

template <DType kFrom, bool kWidening>
CKFS_AVX2 Lanes load_lanes(const std::byte* in) {
  if constexpr (kFrom == DType::F64) {
    return {_mm256_set_m128(round_f64(in + 32), round_f64(in)),
            _mm256_set_m128(round_f64(in + 96), round_f64(in + 64))};
  } else if constexpr (kFrom == DType::F32) {
    return {_mm256_castsi256_ps(load_256(in)), _mm256_castsi256_ps(load_256(in + 32))};
  } else if constexpr (kFrom == DType::BF16) {
    const __m256i low = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(in)), 16);
    const __m256i high = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(in + 16)), 16);
    return {_mm256_castsi256_ps(low), _mm256_castsi256_ps(high)};
  } else if constexpr (kFrom == DType::F16) {
    return {widen_f16<kWidening>(load_128(in)), widen_f16<kWidening>(load_128(in + 16))};
  } else {
    static_assert(kFrom == DType::F8E5M2);
    const __m256i half = _mm256_slli_epi16(_mm256_cvtepu8_epi16(load_128(in)), 8);
    return {widen_f16<kWidening>(_mm256_castsi256_si128(half)),
            widen_f16<kWidening>(_mm256_extracti128_si256(half, 1))};
  }
}

/// Requires: no NaN of `lanes` has a payload, or `kTo` is wider than the element was.
template <DType kTo>
CKFS_AVX2 void store_lanes(std::byte* out, Lanes lanes) {
  if constexpr (kTo == DType::F64) {
    store_256(out, widen_f32(_mm256_castps256_ps128(lanes.low)));
    store_256(out + 32, widen_f32(_mm256_extractf128_ps(lanes.low, 1)));
    store_256(out + 64, widen_f32(_mm256_castps256_ps128(lanes.high)));
    store_256(out + 96, widen_f32(_mm256_extractf128_ps(lanes.high, 1)));
  } else if constexpr (kTo == DType::F32) {
    store_256(out, _mm256_castps_si256(lanes.low));
    store_256(out + 32, _mm256_castps_si256(lanes.high));
  } else if constexpr (kTo == DType::F16) {
    const __m128i low = _mm256_cvtps_ph(lanes.low, _MM_FROUND_TO_NEAREST_INT);
    const __m128i high = _mm256_cvtps_ph(lanes.high, _MM_FROUND_TO_NEAREST_INT);
    store_256(out, _mm256_set_m128i(high, low));
  } else {
    static_assert(kTo == DType::BF16);
    const __m256i low = round_to_bf16(lanes.low);
    const __m256i high = round_to_bf16(lanes.high);
    // The pack works on 128-bit halves and so interleaves them.
    store_256(out, _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8));
  }
}

template <DType kFrom, DType kTo>
CKFS_AVX2 void cast_elements(const std::byte* in, std::byte* out, std::size_t count) {
  constexpr std::size_t kIn = sizeof(typename bits_of::Format<kFrom>::Code);
  constexpr std::size_t kOut = sizeof(typename bits_of::Format<kTo>::Code);
  constexpr bool kWidening = kOut > kIn;
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes lanes = load_lanes<kFrom, kWidening>(in + i * kIn);
    if constexpr (!kWidening) lanes = {with_plain_nans(lanes.low), with_plain_nans(lanes.high)};
    store_lanes<kTo>(out + i * kOut, lanes);
  }
  reference::cast(kFrom, kTo)(in + i * kIn, out + i * kOut, count - i);
}

/// How an F8 format stands in F16: multiplied by kFactor, its codes are those of decode().
template <DType kFrom>
struct AsF16;

template <>
struct AsF16<DType::F8E4M3> {
  static constexpr float kFactor = 256.0F;  // the difference of the biases, 15 - 7
  CKFS_AVX2 static __m256i decode(__m256i high) {
    // s eeee mmm 0.. becomes s 0eeee mmm 0..; the arithmetic shift copies the sign, the mask clears
    // the copy.
    const __m256i half = _mm256_and_si256(_mm256_srai_epi16(high, 1), _mm256_set1_epi16(~0x4000));
    const __m256i magnitude = _mm256_and_si256(half, _mm256_set1_epi16(0x7fff));
    const __m256i is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80));
    return _mm256_xor_si256(half, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x3f80 ^ 0x7e00)));
  }
};

template <>
struct AsF16<DType::F8E4M3FNUZ> {
  static constexpr float kFactor = 128.0F;  // 15 - 8
  CKFS_AVX2 static __m256i decode(__m256i high) {
    const __m256i half = _mm256_and_si256(_mm256_srai_epi16(high, 1), _mm256_set1_epi16(~0x4000));
    const __m256i is_nan = _mm256_cmpeq_epi16(half, _mm256_set1_epi16(-0x8000));
    return _mm256_or_si256(half, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7e00)));
  }
};

template <>
struct AsF16<DType::F8E5M2> {
  static constexpr float kFactor = 1.0F;
  CKFS_AVX2 static __m256i decode(__m256i high) {
    const __m256i magnitude = _mm256_and_si256(high, _mm256_set1_epi16(0x7fff));
    const __m256i is_nan = _mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7c00));
    const __m256i sign = _mm256_and_si256(high, _mm256_set1_epi16(-0x8000));
    return _mm256_blendv_epi8(high, _mm256_or_si256(sign, _mm256_set1_epi16(0x7e00)), is_nan);
  }
};

/// Whether scale * kFactor is exact and every NaN of a product comes from a NaN code. Zero times an
/// infinite code is the one other NaN of a finite scale; only F8E5M2 has infinities.
template <DType kFrom>
bool is_plain(float scale) {
  return std::fabs(scale * AsF16<kFrom>::kFactor) <= 0x1.fffffep127F &&
         (kFrom != DType::F8E5M2 || scale != 0.0F);
}

/// Elements at `in` times one scale.
template <DType kFrom, DType kTo>
CKFS_AVX2 void scale_elements(const std::byte* in, float scale, std::byte* out, std::size_t count) {
  constexpr std::size_t kOut = sizeof(typename bits_of::Format<kTo>::Code);
  std::size_t i = 0;
  if (is_plain<kFrom>(scale)) {
    const __m256 factor = _mm256_set1_ps(scale * AsF16<kFrom>::kFactor);
    for (; i + kLanes <= count; i += kLanes) {
      const __m256i high = _mm256_slli_epi16(_mm256_cvtepu8_epi16(load_128(in + i)), 8);
      const __m256i half = AsF16<kFrom>::decode(high);
      const __m256 first = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
      const __m256 second = _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1));
      store_lanes<kTo>(out + i * kOut,
                       {_mm256_mul_ps(first, factor), _mm256_mul_ps(second, factor)});
    }
  }
  if (i < count) reference::scale(kFrom, kTo)(in + i, scale, out + i * kOut, count - i);
}

template <DType kFrom, DType kTo>
CKFS_AVX2 void scale_elements_by_block(const std::byte* in, const float* scales, std::size_t first,
                                       std::size_t block, std::byte* out, std::size_t count) {
  constexpr std::size_t kOut = sizeof(typename bits_of::Format<kTo>::Code);
  const float* scale = scales + first / block;
  std::size_t run = std::min(count, block - first % block);
  for (std::size_t i = 0; i < count;) {
    scale_elements<kFrom, kTo>(in + i, *scale++, out + i * kOut, run);
    i += run;
    run = std::min(count - i, block);
  }
}

/// F8 with one NaN and no infinity: a scale of one is the cast.
template <DType kFrom>
CKFS_AVX2 void cast_f8(const std::byte* in, std::byte* out, std::size_t count) {
  scale_elements<kFrom, DType::F32>(in, 1.0F, out, count);
}

template <typename Use>
auto select_kernel(DType from, DType to, Use use) {
  return select_scaled<DType::F8E4M3, DType::F8E5M2, DType::F8E4M3FNUZ>(from, to, use);
}

}  // namespace

CastKernel cast(DType from, DType to) {
  if (from == to) return nullptr;
  if (is_castable_float(from)) {
    return select_float(from, [to]<DType kFrom>() {
      return select_float(to, []<DType kTo>() -> CastKernel { return cast_elements<kFrom, kTo>; });
    });
  }
  if (to != DType::F32) return nullptr;
  if (from == DType::F8E5M2) return cast_elements<DType::F8E5M2, DType::F32>;
  return select<DType::F8E4M3, DType::F8E4M3FNUZ>(
      from, []<DType kFrom>() -> CastKernel { return cast_f8<kFrom>; });
}

ScaleKernel scale(DType from, DType to) {
  return select_kernel(
      from, to, []<DType kFrom, DType kTo>() -> ScaleKernel { return scale_elements<kFrom, kTo>; });
}

ScaleBlocksKernel scale_blocks(DType from, DType to) {
  return select_kernel(from, to, []<DType kFrom, DType kTo>() -> ScaleBlocksKernel {
    return scale_elements_by_block<kFrom, kTo>;
  });
}

}  // namespace ckfs::avx2
// NOLINTEND(portability-simd-intrinsics)
#endif
