// 16 elements at a time with AVX2 and F16C: loading and widening them to F32, rounding and storing
// them. What the kernels of x86_avx2*.cc have in common; every function is compiled for its own
// target, so only code of the same target may call it.
#pragma once

#ifdef __x86_64__
#include <cstring>
#include <immintrin.h>

#include "tensor/dtype.h"

// FMA is left out: a fused product would round once where the reference tools round twice.
#define CKFS_AVX2 __attribute__((target("avx2,f16c,bmi2"))) inline

// NOLINTBEGIN(portability-simd-intrinsics): this file is the non-portable half of a pair.
namespace ckfs::avx2 {

inline constexpr std::size_t kLanes = 16;

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

/// 8 F32, no payload in a NaN, to the nearest BF16, each in the high half of its lane; anything
/// below it.
CKFS_AVX2 __m256i round_to_bf16(__m256 value) {
  const __m256i f32 = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(f32, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(f32, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
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
    const __m256i low = _mm256_srli_epi32(round_to_bf16(lanes.low), 16);
    const __m256i high = _mm256_srli_epi32(round_to_bf16(lanes.high), 16);
    // The pack works on 128-bit halves and so interleaves them.
    store_256(out, _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8));
  }
}

}  // namespace ckfs::avx2
// NOLINTEND(portability-simd-intrinsics)
#endif
