// Integer codes and codes of 4 bits with AVX-512. Of 16 codes each stands for one value within a
// block, so a block's 16 products are rounded first, and elements are looked up in them, 32 with
// one permutation; scaling each element instead takes twice as long. Scales that are infinite or
// NaN, or tables that hold such, are the reference's.
#ifdef __x86_64__
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands inside its own intrinsics for variables of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
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

/// The same of 32 values.
template <DType kTo, bool kNormal>
CKFS_AVX512 __m512i narrow(__m512 low, __m512 high) {
  if constexpr (kTo == DType::BF16 && kNormal) {
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
  } else {
    const __m256i first = narrow<kTo, kNormal>(low);
    const __m256i second = narrow<kTo, kNormal>(high);
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
  }
}

CKFS_AVX512 __m512 products(__m512 values, const BlockScales& scales, std::size_t block) {
  if (scales.zeros != nullptr) {
    values = _mm512_sub_ps(values, _mm512_set1_ps(scales.zeros[block]));
  }
  return _mm512_mul_ps(values, _mm512_set1_ps(scales.scales[block]));
}

/// Numbers of 16 bits that end in the 32 codes of 16 bytes, in their order, with anything above
/// them. The bytes are numbers of 32 bits.
template <bool kHighFirst>
CKFS_AVX512 __m512i with_codes(__m512i bytes) {
  if constexpr (kHighFirst) {
    return _mm512_or_si512(_mm512_srli_epi32(bytes, 4), _mm512_slli_epi32(bytes, 16));
  } else {
    return _mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 12));
  }
}

CKFS_AVX512 __m512i load_16_bytes(const std::byte* in) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
}

/// Elements of one block, through a table that has its 16 products twice: a look-up among 32 takes
/// five bits of each number, and four of them are the code.
template <bool kHighFirst>
CKFS_AVX512 void look_up_16(const std::byte* in, __m512i twice, std::byte* out, std::size_t count) {
  std::size_t i = 0;
  // Stores under a mask take twice as long.
  for (; i + 32 <= count; i += 32) {
    const __m512i codes = with_codes<kHighFirst>(load_16_bytes(in + i / 2));
    _mm512_storeu_si512(out + 2 * i, _mm512_permutexvar_epi16(codes, twice));
  }
  if (i < count) {
    const std::size_t rest = count - i;
    const auto bytes_mask = static_cast<__mmask16>((std::uint32_t{1} << ((rest + 1) / 2)) - 1);
    const auto mask = static_cast<__mmask32>((std::uint64_t{1} << rest) - 1);
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(bytes_mask, in + i / 2));
    const __m512i codes = with_codes<kHighFirst>(bytes);
    _mm512_mask_storeu_epi16(out + 2 * i, mask, _mm512_permutexvar_epi16(codes, twice));
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

/// `count` elements of one block; the first one begins a byte.
template <DType kTo, bool kHighFirst, bool kNormal>
CKFS_AVX512 void one_block(const std::byte* in, __m512 values, const BlockScales& scales,
                           std::size_t block, std::byte* out, std::size_t count) {
  const __m512 table = products(values, scales, block);
  if constexpr (kTo == DType::F32) {
    look_up_32<kHighFirst>(in, table, out, count);
  } else {
    look_up_16<kHighFirst>(in, narrow<kTo, kNormal>(table, table), out, count);
  }
}

/// Whole blocks of a multiple of 32 elements.
template <DType kTo, bool kHighFirst, bool kNormal>
CKFS_AVX512 void whole_32s(const std::byte* in, __m512 values, const BlockScales& scales,
                           std::size_t block, std::byte* out, std::size_t blocks) {
  for (const std::size_t end = block + blocks; block < end; ++block) {
    const __m512 table = products(values, scales, block);
    const __m512i twice = narrow<kTo, kNormal>(table, table);
    for (std::size_t i = 0; i < scales.block; i += 32, in += 16, out += 64) {
      const __m512i codes = with_codes<kHighFirst>(load_16_bytes(in));
      _mm512_storeu_si512(out, _mm512_permutexvar_epi16(codes, twice));
    }
  }
}

/// An even number of whole blocks of 16: two at a time through a table of 32 products.
template <DType kTo, bool kHighFirst, bool kNormal>
CKFS_AVX512 void pairs_of_16(const std::byte* in, __m512 values, const BlockScales& scales,
                             std::size_t block, std::byte* out, std::size_t blocks) {
  const __m512i four_bits = _mm512_set1_epi16(15);
  const __m512i second = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
  for (const std::size_t end = block + blocks; block < end; block += 2, in += 16, out += 64) {
    const __m512i table =
        narrow<kTo, kNormal>(products(values, scales, block), products(values, scales, block + 1));
    const __m512i codes = with_codes<kHighFirst>(load_16_bytes(in));
    // (codes & four_bits) | second
    const __m512i places = _mm512_ternarylogic_epi32(codes, four_bits, second, 0xea);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(places, table));
  }
}

/// The second code of a byte; the first, which may be of the block before, is not used.
template <DType kTo>
void second_of_byte(const std::byte* in, const NibbleTable& table, const BlockScales& scales,
                    std::size_t block, std::byte* out) {
  constexpr std::size_t kWidth = kTo == DType::F32 ? 4 : 2;
  std::array<std::byte, 8> pair;
  const BlockScales only{scales.scales + block,
                         scales.zeros == nullptr ? nullptr : scales.zeros + block, 0, 2};
  reference::scale_nibbles(kTo)(in, table, only, pair.data(), 2);
  std::memcpy(out, pair.data() + kWidth, kWidth);
}

template <DType kTo, bool kHighFirst, bool kNormal>
CKFS_AVX512 void nibbles_in(const std::byte* in, const NibbleTable& table,
                            const BlockScales& scales, std::byte* out, std::size_t count) {
  constexpr std::size_t kWidth = kTo == DType::F32 ? 4 : 2;
  const __m512 values = _mm512_loadu_ps(table.values.data());
  // What there is a faster way for: so many elements, or a multiple.
  const std::size_t whole = kTo == DType::F32        ? 0
                            : scales.block == 16     ? 32
                            : scales.block % 32 == 0 ? scales.block
                                                     : 0;
  // A division takes as long as a block of 32 elements.
  std::size_t block = scales.first / scales.block;
  std::size_t left = scales.block - scales.first % scales.block;
  for (std::size_t i = 0; i < count;) {
    if (i % 2 != 0) {
      second_of_byte<kTo>(in + i / 2, table, scales, block, out + i * kWidth);
      ++i;
      --left;
    } else if (left == scales.block && whole > 0 && count - i >= whole) {
      const std::size_t blocks = (count - i) / whole * (whole / scales.block);
      const auto run = scales.block == 16 ? pairs_of_16<kTo, kHighFirst, kNormal>
                                          : whole_32s<kTo, kHighFirst, kNormal>;
      run(in + i / 2, values, scales, block, out + i * kWidth, blocks);
      block += blocks;
      i += blocks * scales.block;
    } else {
      const std::size_t now = std::min(left, count - i);
      one_block<kTo, kHighFirst, kNormal>(in + i / 2, values, scales, block, out + i * kWidth, now);
      i += now;
      left -= now;
    }
    if (left == 0) {
      left = scales.block;
      ++block;
    }
  }
}

struct Magnitudes {
  bool finite = true;
  bool normal = true;  // none but zero is less than the least
};

/// Of `count` floats.
CKFS_AVX512 Magnitudes magnitudes(const float* values, std::size_t count, float least,
                                  bool zero_is_normal) {
  __mmask16 infinite = 0, small = 0;
  for (std::size_t i = 0; i < count; i += 16) {
    const auto mask =
        static_cast<__mmask16>((std::uint32_t{1} << std::min<std::size_t>(16, count - i)) - 1);
    const __m512 magnitude = _mm512_abs_ps(_mm512_maskz_loadu_ps(mask, values + i));
    infinite |=
        _mm512_mask_cmp_ps_mask(mask, magnitude, _mm512_set1_ps(0x1.fffffep127F), _CMP_NLE_UQ);
    __mmask16 less = _mm512_mask_cmp_ps_mask(mask, magnitude, _mm512_set1_ps(least), _CMP_LT_OQ);
    if (zero_is_normal) {
      less = _mm512_mask_cmp_ps_mask(less, magnitude, _mm512_setzero_ps(), _CMP_NEQ_OQ);
    }
    small |= less;
  }
  return {infinite == 0, small == 0};
}

template <DType kTo>
CKFS_AVX512 void nibbles(const std::byte* in, const NibbleTable& table, const BlockScales& scales,
                         std::byte* out, std::size_t count) {
  if (count == 0) return;
  const std::size_t first = scales.first / scales.block;
  const std::size_t last = (scales.first + count - 1) / scales.block;
  const Magnitudes of_values = magnitudes(table.values.data(), 16, kLeastValue, true);
  const Magnitudes of_scales =
      magnitudes(scales.scales + first, last + 1 - first, kLeastScale, false);
  if (!of_values.finite || !of_scales.finite) {
    reference::scale_nibbles(kTo)(in, table, scales, out, count);
    return;
  }
  // The difference of a value and a zero may be anything: only whole numbers are known to be large.
  const bool normal = of_values.normal && of_scales.normal && scales.zeros == nullptr;
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
