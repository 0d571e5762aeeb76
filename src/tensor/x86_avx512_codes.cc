// Integer codes and codes of 4 bits with AVX-512. Of 16 codes each stands for one value within a
// block, so a block's 16 products are rounded first, and elements are looked up in them, 32 with
// one permutation; scaling each element instead takes twice as long. Scales that are infinite or
// NaN, or tables that hold such, are the reference's.
#ifdef __x86_64__
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands inside its own intrinsics for variables of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

#include "tensor/kernel_sets.h"
#include "tensor/select.h"

#define CKFS_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) inline

// NOLINTBEGIN(portability-simd-intrinsics): this file is the non-portable half of a pair.
namespace ckfs::avx512 {
namespace {

/// From this scale on, products with values of kLeastValue and more are not subnormal in F32, which
/// the instruction that rounds to BF16 takes for zero.
constexpr float kLeastScale = 0x1p-100F;
constexpr float kLeastValue = 0x1p-20F;

CKFS_AVX512 __m256i round_to_bf16(__m512 value) {
  const __m512i f32 = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(f32, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(f32, half), 16));
}

/// 16 values, none of them NaN, rounded to 16 bits. kNormal: none is subnormal in F32.
template <DType kTo, bool kNormal>
CKFS_AVX512 __m256i narrow(__m512 value) {
  if constexpr (kTo == DType::F16) {
    return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
  } else if constexpr (kNormal) {
    return (__m256i)_mm512_cvtneps_pbh(value);
  } else {
    return round_to_bf16(value);
  }
}

template <DType kTo, bool kNormal>
CKFS_AVX512 __m512i narrow(__m512 low, __m512 high) {
  if constexpr (kTo == DType::BF16 && kNormal) {
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
  } else {
    return _mm512_inserti64x4(_mm512_castsi256_si512(narrow<kTo, kNormal>(low)),
                              narrow<kTo, kNormal>(high), 1);
  }
}

CKFS_AVX512 __m512 products(__m512 values, const BlockScales& scales, std::size_t block) {
  if (scales.zeros != nullptr) {
    values = _mm512_sub_ps(values, _mm512_set1_ps(scales.zeros[block]));
  }
  return _mm512_mul_ps(values, _mm512_set1_ps(scales.scales[block]));
}

/// The 32 codes of 16 bytes as numbers of 16 bits, in their order. The bytes are numbers of 32
/// bits.
template <bool kHighFirst>
CKFS_AVX512 __m512i codes_of(__m512i bytes) {
  const __m512i mask = _mm512_set1_epi32(0x000f000f);
  if constexpr (kHighFirst) {
    return _mm512_and_si512(
        _mm512_or_si512(_mm512_srli_epi32(bytes, 4), _mm512_slli_epi32(bytes, 16)), mask);
  } else {
    return _mm512_and_si512(_mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12)), mask);
  }
}

/// Elements of one block, through the table of its 16 products.
template <DType kTo, bool kHighFirst>
CKFS_AVX512 void look_up_16(const std::byte* in, __m256i table, std::byte* out, std::size_t count) {
  const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(table), table, 1);
  std::size_t i = 0;
  // Stores under a mask take twice as long.
  for (; i + 32 <= count; i += 32) {
    const __m512i bytes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i / 2)));
    _mm512_storeu_si512(out + 2 * i, _mm512_permutexvar_epi16(codes_of<kHighFirst>(bytes), both));
  }
  if (i < count) {
    const std::size_t rest = count - i;
    const auto bytes_mask = static_cast<__mmask16>((std::uint32_t{1} << ((rest + 1) / 2)) - 1);
    const auto mask = static_cast<__mmask32>((std::uint64_t{1} << rest) - 1);
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(bytes_mask, in + i / 2));
    _mm512_mask_storeu_epi16(out + 2 * i, mask,
                             _mm512_permutexvar_epi16(codes_of<kHighFirst>(bytes), both));
  }
}

template <bool kHighFirst>
CKFS_AVX512 void look_up_32(const std::byte* in, __m512 table, std::byte* out, std::size_t count) {
  const __m512i mask_codes = _mm512_set1_epi64(0x0000000f0000000f);
  for (std::size_t i = 0; i < count; i += 16) {
    const std::size_t rest = std::min<std::size_t>(16, count - i);
    const auto bytes_mask = static_cast<__mmask16>((std::uint32_t{1} << ((rest + 1) / 2)) - 1);
    const auto mask = static_cast<__mmask16>((std::uint32_t{1} << rest) - 1);
    const __m512i bytes = _mm512_cvtepu8_epi64(_mm_maskz_loadu_epi8(bytes_mask, in + i / 2));
    const __m512i codes =
        kHighFirst ? _mm512_or_si512(_mm512_srli_epi64(bytes, 4), _mm512_slli_epi64(bytes, 32))
                   : _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28));
    _mm512_mask_storeu_ps(out + 4 * i, mask,
                          _mm512_permutexvar_ps(_mm512_and_si512(codes, mask_codes), table));
  }
}

/// The elements [begin, end), which are of one block and begin with a byte.
template <DType kTo, bool kHighFirst, bool kNormal>
CKFS_AVX512 void one_block(const std::byte* in, __m512 values, const BlockScales& scales,
                           std::byte* out, std::size_t begin, std::size_t end) {
  const __m512 table = products(values, scales, (scales.first + begin) / scales.block);
  if constexpr (kTo == DType::F32) {
    look_up_32<kHighFirst>(in + begin / 2, table, out + 4 * begin, end - begin);
  } else {
    look_up_16<kTo, kHighFirst>(in + begin / 2, narrow<kTo, kNormal>(table), out + 2 * begin,
                                end - begin);
  }
}

/// Whole blocks of 16, an even number of them: two at a time through a table of 32 products.
template <DType kTo, bool kHighFirst, bool kNormal>
CKFS_AVX512 void pairs_of_16(const std::byte* in, __m512 values, const BlockScales& scales,
                             std::byte* out, std::size_t begin, std::size_t end) {
  const __m512i second = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
  std::size_t block = (scales.first + begin) / 16;
  for (std::size_t i = begin; i < end; i += 32, block += 2) {
    const __m512i table =
        narrow<kTo, kNormal>(products(values, scales, block), products(values, scales, block + 1));
    const __m512i bytes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i / 2)));
    const __m512i codes = _mm512_or_si512(codes_of<kHighFirst>(bytes), second);
    _mm512_storeu_si512(out + 2 * i, _mm512_permutexvar_epi16(codes, table));
  }
}

template <DType kTo, bool kHighFirst, bool kNormal>
CKFS_AVX512 void nibbles_in(const std::byte* in, const NibbleTable& table,
                            const BlockScales& scales, std::byte* out, std::size_t count) {
  const __m512 values = _mm512_loadu_ps(table.values.data());
  std::size_t i = 0;
  while (i < count) {
    const std::size_t in_block = (scales.first + i) % scales.block;
    if (kTo != DType::F32 && scales.block == 16 && in_block == 0 && i % 2 == 0 && count - i >= 32) {
      const std::size_t end = i + (count - i) / 32 * 32;
      pairs_of_16<kTo, kHighFirst, kNormal>(in, values, scales, out, i, end);
      i = end;
      continue;
    }
    const std::size_t end = std::min(count, i + (scales.block - in_block));
    if (i % 2 != 0) {  // the second code of a byte
      std::array<std::byte, 8> pair;
      // The first of the pair may be of the block before; it is not used.
      const std::size_t block = (scales.first + i) / scales.block;
      const BlockScales only{scales.scales + block,
                             scales.zeros == nullptr ? nullptr : scales.zeros + block, 0, 2};
      reference::scale_nibbles(kTo)(in + i / 2, table, only, pair.data(), 2);
      constexpr std::size_t kWidth = kTo == DType::F32 ? 4 : 2;
      std::memcpy(out + i * kWidth, pair.data() + kWidth, kWidth);
      ++i;
      continue;
    }
    one_block<kTo, kHighFirst, kNormal>(in, values, scales, out, i, end);
    i = end;
  }
}

template <DType kTo>
void nibbles(const std::byte* in, const NibbleTable& table, const BlockScales& scales,
             std::byte* out, std::size_t count) {
  if (count == 0) return;
  const std::size_t first = scales.first / scales.block;
  const std::size_t last = (scales.first + count - 1) / scales.block;
  bool finite = true, normal = true;
  for (const float value : table.values) {
    finite = finite && std::isfinite(value);
    normal = normal && (value == 0.0F || std::fabs(value) >= kLeastValue);
  }
  for (std::size_t block = first; block <= last; ++block) {
    const float magnitude = std::fabs(scales.scales[block]);
    finite &= magnitude <= 0x1.fffffep127F;
    normal &= magnitude >= kLeastScale;
  }
  if (!finite) {
    reference::scale_nibbles(kTo)(in, table, scales, out, count);
    return;
  }
  // What is left of a value less a zero may be anything: whole numbers only are known to be large.
  if (scales.zeros != nullptr) normal = false;
  const auto run = table.high_first
                       ? (normal ? nibbles_in<kTo, true, true> : nibbles_in<kTo, true, false>)
                       : (normal ? nibbles_in<kTo, false, true> : nibbles_in<kTo, false, false>);
  run(in, table, scales, out, count);
}

template <DType kTo>
CKFS_AVX512 void store_16(std::byte* out, __mmask16 mask, __m512 value) {
  if constexpr (kTo == DType::F32) {
    _mm512_mask_storeu_ps(out, mask, value);
  } else {
    _mm256_mask_storeu_epi16(out, mask, narrow<kTo, false>(value));
  }
}

/// A NaN becomes the quiet one with the sign of `factor`.
CKFS_AVX512 __m512 with_nan_of(__m512 product, __m512 factor) {
  const __mmask16 nan = _mm512_cmp_ps_mask(product, product, _CMP_UNORD_Q);
  const __m512i sign = _mm512_and_si512(_mm512_castps_si512(factor), _mm512_set1_epi32(INT32_MIN));
  return _mm512_castsi512_ps(
      _mm512_mask_or_epi32(_mm512_castps_si512(product), nan, sign, _mm512_set1_epi32(0x7fc00000)));
}

/// round_to_bf16() takes no NaN: its place is filled afterwards.
template <DType kTo>
CKFS_AVX512 void store_any(std::byte* out, __mmask16 mask, __m512 value) {
  if constexpr (kTo == DType::BF16) {
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m256i top = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(value), 16));
    _mm256_mask_storeu_epi16(out, mask, _mm256_mask_blend_epi16(nan, round_to_bf16(value), top));
  } else {
    store_16<kTo>(out, mask, value);
  }
}

template <DType kTo>
CKFS_AVX512 void integers(const std::byte* in, const BlockScales& scales, std::byte* out,
                          std::size_t count) {
  constexpr std::size_t kWidth = kTo == DType::F32 ? 4 : 2;
  for (std::size_t i = 0; i < count;) {
    const std::size_t block = (scales.first + i) / scales.block;
    const std::size_t end =
        scales.block == 1 ? count : std::min(count, (block + 1) * scales.block - scales.first);
    const float scale = scales.scales[block];
    const float zero = scales.zeros == nullptr ? 0.0F : scales.zeros[block];
    const bool normal = scales.block > 1 && kTo == DType::BF16 && scales.zeros == nullptr &&
                        std::fabs(scale) >= kLeastScale && std::fabs(scale) <= 0x1.fffffep127F;
    if (normal) {
      const __m512 factor = _mm512_set1_ps(scale);
      for (; i + 32 <= end; i += 32) {
        const auto* at = reinterpret_cast<const __m128i*>(in + i);
        const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at)));
        const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at + 1)));
        _mm512_storeu_si512(out + 2 * i, (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(high, factor),
                                                                      _mm512_mul_ps(low, factor)));
      }
    }
    for (; i < end; i += 16) {
      const std::size_t rest = std::min<std::size_t>(16, end - i);
      const auto mask = static_cast<__mmask16>((std::uint32_t{1} << rest) - 1);
      __m512 value = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, in + i)));
      __m512 factor = _mm512_set1_ps(scale);
      if (scales.block == 1) {
        factor = _mm512_maskz_loadu_ps(mask, scales.scales + scales.first + i);
        if (scales.zeros != nullptr) {
          value =
              _mm512_sub_ps(value, _mm512_maskz_loadu_ps(mask, scales.zeros + scales.first + i));
        }
      } else if (scales.zeros != nullptr) {
        value = _mm512_sub_ps(value, _mm512_set1_ps(zero));
      }
      store_any<kTo>(out + i * kWidth, mask, with_nan_of(_mm512_mul_ps(value, factor), value));
    }
    i = end;
  }
}

}  // namespace

ScaleIntegersKernel scale_integers(DType to) {
  return select<DType::F32, DType::F16, DType::BF16>(
      to, []<DType kTo>() -> ScaleIntegersKernel { return integers<kTo>; });
}

ScaleNibblesKernel scale_nibbles(DType to) {
  return select<DType::F32, DType::F16, DType::BF16>(
      to, []<DType kTo>() -> ScaleNibblesKernel { return nibbles<kTo>; });
}

}  // namespace ckfs::avx512
// NOLINTEND(portability-simd-intrinsics)
#endif
