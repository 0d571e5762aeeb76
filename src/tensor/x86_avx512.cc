// Scaled decoding with AVX-512, 32 elements at a time and the last ones under a mask. The same way
// by F16 as in x86_avx2.cc; what AVX-512 adds is the mask for NaN codes and one instruction that
// rounds to BF16. That one takes subnormal numbers for zero, so it serves only where the scale is
// too large for a product to be subnormal, and integer rounding serves the rest. Casts are left to
// AVX2: they wait for memory already.
#ifdef __x86_64__
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands inside its own intrinsics for variables of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <immintrin.h>

#include "tensor/float_bits.h"
#include "tensor/kernel_sets.h"
#include "tensor/prefetch.h"
#include "tensor/select.h"

#define CKFS_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) inline

// NOLINTBEGIN(portability-simd-intrinsics): this file is the non-portable half of a pair.
namespace ckfs::avx512 {
namespace {

constexpr std::size_t kLanes = 32;

/// Below this scale a product may be subnormal in F32: the least code of the formats here is 2^-16.
constexpr float kLeastForRounding = 0x1p-110F;

/// An F8 format in F16: multiplied by kFactor, its codes are those of decode(). `codes` are the
/// stored bytes, `high` the same in the high bytes of 16-bit lanes.
template <DType kFrom>
struct AsF16;

CKFS_AVX512 __m512i drop_second_exponent_bit(__m512i high) {
  // s eeee mmm 0.. becomes s 0eeee mmm 0..; the shift copies the sign, the mask clears the copy.
  return _mm512_and_si512(_mm512_srai_epi16(high, 1), _mm512_set1_epi16(~0x4000));
}

template <>
struct AsF16<DType::F8E4M3> {
  static constexpr float kFactor = 256.0F;  // the difference of the biases, 15 - 7
  CKFS_AVX512 static __m512i decode(__m256i codes, __m512i high) {
    const __mmask32 nan = _mm256_cmpeq_epi8_mask(_mm256_or_si256(codes, _mm256_set1_epi8(-0x80)),
                                                 _mm256_set1_epi8(-1));
    const __m512i half = drop_second_exponent_bit(high);
    return _mm512_mask_blend_epi16(nan, half,
                                   _mm512_xor_si512(half, _mm512_set1_epi16(0x3f80 ^ 0x7e00)));
  }
};

template <>
struct AsF16<DType::F8E4M3FNUZ> {
  static constexpr float kFactor = 128.0F;  // 15 - 8
  CKFS_AVX512 static __m512i decode(__m256i codes, __m512i high) {
    const __mmask32 nan = _mm256_cmpeq_epi8_mask(codes, _mm256_set1_epi8(-0x80));
    return _mm512_mask_blend_epi16(nan, drop_second_exponent_bit(high),
                                   _mm512_set1_epi16(static_cast<short>(0xfe00)));
  }
};

template <>
struct AsF16<DType::F8E5M2> {
  static constexpr float kFactor = 1.0F;
  CKFS_AVX512 static __m512i decode(__m256i, __m512i high) {
    const __m512i magnitude = _mm512_and_si512(high, _mm512_set1_epi16(0x7fff));
    const __mmask32 nan = _mm512_cmpgt_epi16_mask(magnitude, _mm512_set1_epi16(0x7c00));
    const __m512i sign = _mm512_and_si512(high, _mm512_set1_epi16(-0x8000));
    return _mm512_mask_blend_epi16(nan, high, _mm512_or_si512(sign, _mm512_set1_epi16(0x7e00)));
  }
};

/// 16 F32, no payload in a NaN, to the nearest BF16.
CKFS_AVX512 __m256i round_to_bf16(__m512 value) {
  const __m512i f32 = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(f32, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(f32, half), 16));
}

enum class Subnormals : std::uint8_t { Possible, Impossible };

template <DType kTo, Subnormals kSubnormals>
CKFS_AVX512 void store_lanes(std::byte* out, __mmask32 mask, __m512 low, __m512 high) {
  if constexpr (kTo == DType::F32) {
    _mm512_mask_storeu_ps(out, static_cast<__mmask16>(mask), low);
    _mm512_mask_storeu_ps(out + 64, static_cast<__mmask16>(mask >> 16), high);
  } else {
    __m512i both;
    if constexpr (kTo == DType::F16) {
      both = _mm512_inserti64x4(
          _mm512_castsi256_si512(_mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT)),
          _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT), 1);
    } else if constexpr (kSubnormals == Subnormals::Impossible) {
      both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    } else {
      both = _mm512_inserti64x4(_mm512_castsi256_si512(round_to_bf16(low)), round_to_bf16(high), 1);
    }
    _mm512_mask_storeu_epi16(out, mask, both);
  }
}

template <DType kFrom, DType kTo, Subnormals kSubnormals>
CKFS_AVX512 void scale_lanes(const std::byte* in, __m512 factor, std::byte* out, __mmask32 mask) {
  const __m256i codes = _mm256_maskz_loadu_epi8(mask, in);
  const __m512i high = _mm512_slli_epi16(_mm512_cvtepu8_epi16(codes), 8);
  const __m512i half = AsF16<kFrom>::decode(codes, high);
  const __m512 first = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
  const __m512 second = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
  store_lanes<kTo, kSubnormals>(out, mask, _mm512_mul_ps(first, factor),
                                _mm512_mul_ps(second, factor));
}

template <DType kFrom, DType kTo, Subnormals kSubnormals>
CKFS_AVX512 void scale_run(const std::byte* in, __m512 factor, std::byte* out, std::size_t count) {
  constexpr std::size_t kOut = sizeof(typename bits_of::Format<kTo>::Code);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    prefetch_next_page(in + i);
    scale_lanes<kFrom, kTo, kSubnormals>(in + i, factor, out + i * kOut, ~__mmask32{0});
  }
  if (i < count) {
    const __mmask32 rest = (__mmask32{1} << (count - i)) - 1;
    scale_lanes<kFrom, kTo, kSubnormals>(in + i, factor, out + i * kOut, rest);
  }
}

template <DType kFrom, DType kTo>
CKFS_AVX512 void scale_elements(const std::byte* in, float scale, std::byte* out,
                                std::size_t count) {
  const float factor = scale * AsF16<kFrom>::kFactor;
  const float magnitude = std::fabs(factor);
  // Scales whose NaN products need the sign of their code, and those that overflow here though
  // their product need not: infinite, NaN, and zero where codes are infinite.
  const bool plain = magnitude <= 0x1.fffffep127F && (kFrom != DType::F8E5M2 || scale != 0.0F);
  if (!plain) {
    reference::scale(kFrom, kTo)(in, scale, out, count);
  } else if (kTo == DType::BF16 && std::fabs(scale) >= kLeastForRounding) {
    scale_run<kFrom, kTo, Subnormals::Impossible>(in, _mm512_set1_ps(factor), out, count);
  } else {
    scale_run<kFrom, kTo, Subnormals::Possible>(in, _mm512_set1_ps(factor), out, count);
  }
}

template <DType kFrom, DType kTo>
CKFS_AVX512 void scale_elements_by_block(const std::byte* in, const float* scales,
                                         std::size_t first, std::size_t block, std::byte* out,
                                         std::size_t count) {
  constexpr std::size_t kOut = sizeof(typename bits_of::Format<kTo>::Code);
  const float* scale = scales + first / block;
  std::size_t run = std::min(count, block - first % block);
  for (std::size_t i = 0; i < count;) {
    scale_elements<kFrom, kTo>(in + i, *scale++, out + i * kOut, run);
    i += run;
    run = std::min(count - i, block);
  }
}

template <typename Use>
auto select_kernel(DType from, DType to, Use use) {
  return select_scaled<DType::F8E4M3, DType::F8E5M2, DType::F8E4M3FNUZ>(from, to, use);
}

}  // namespace

ScaleKernel scale(DType from, DType to) {
  return select_kernel(
      from, to, []<DType kFrom, DType kTo>() -> ScaleKernel { return scale_elements<kFrom, kTo>; });
}

ScaleBlocksKernel scale_blocks(DType from, DType to) {
  return select_kernel(from, to, []<DType kFrom, DType kTo>() -> ScaleBlocksKernel {
    return scale_elements_by_block<kFrom, kTo>;
  });
}

}  // namespace ckfs::avx512
// NOLINTEND(portability-simd-intrinsics)
#endif
