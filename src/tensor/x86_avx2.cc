// Casts and scaled decoding with AVX2 and F16C, 16 elements at a time; the rest goes to the
// reference kernel. Every function is compiled for its own target, so that the program still starts
// on CPUs without these instructions (dispatch.cc chooses); FMA is left out of the target, because
// a fused product would round once where the reference tools round twice.
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

#include "tensor/float_bits.h"
#include "tensor/kernel_sets.h"
#include "tensor/prefetch.h"
#include "tensor/select.h"
#include "tensor/x86_avx2_lanes.h"

// NOLINTBEGIN(portability-simd-intrinsics): this file is the non-portable half of a pair.
namespace ckfs::avx2 {
namespace {

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

/// How F16 represents an F8 format: its values times kFactor are those of decode().
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

/// 16 codes, each in the high byte of 16 bits, as F16: in their order, or, for BF16, the even ones
/// before the odd ones. So two registers of F32 that follow from them are one of BF16 without a
/// permutation: the odd elements are in their places, the even ones are shifted to theirs.
template <DType kFrom, DType kTo>
CKFS_AVX2 __m256i load_as_f16(const std::byte* in) {
  const __m256i twice = _mm256_broadcastsi128_si256(load_128(in));
  const __m256i places =
      kTo == DType::BF16
          ? _mm256_setr_epi8(-1, 0, -1, 2, -1, 4, -1, 6, -1, 8, -1, 10, -1, 12, -1, 14,  //
                             -1, 1, -1, 3, -1, 5, -1, 7, -1, 9, -1, 11, -1, 13, -1, 15)
          : _mm256_setr_epi8(-1, 0, -1, 1, -1, 2, -1, 3, -1, 4, -1, 5, -1, 6, -1, 7,  //
                             -1, 8, -1, 9, -1, 10, -1, 11, -1, 12, -1, 13, -1, 14, -1, 15);
  return AsF16<kFrom>::decode(_mm256_shuffle_epi8(twice, places));
}

/// Elements at `in` times one scale.
template <DType kFrom, DType kTo>
CKFS_AVX2 void scale_elements(const std::byte* in, float scale, std::byte* out, std::size_t count) {
  constexpr std::size_t kOut = sizeof(typename bits_of::Format<kTo>::Code);
  std::size_t i = 0;
  if (is_plain<kFrom>(scale)) {
    const __m256 factor = _mm256_set1_ps(scale * AsF16<kFrom>::kFactor);
    for (; i + kLanes <= count; i += kLanes) {
      prefetch_next_page(in + i);
      const __m256i half = load_as_f16<kFrom, kTo>(in + i);
      const __m256 first = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), factor);
      const __m256 second =
          _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), factor);
      if constexpr (kTo == DType::BF16) {
        const __m256i even = _mm256_srli_epi32(round_to_bf16(first), 16);
        store_256(out + i * kOut, _mm256_blend_epi16(even, round_to_bf16(second), 0xaa));
      } else {
        store_lanes<kTo>(out + i * kOut, {first, second});
      }
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
