// Integer codes and codes of 4 bits with AVX2, as in x86_avx512_codes.cc: the 16 products of a
// block are rounded first, and elements looked up in them, 16-bit ones as two tables of bytes. Odd
// widths are unpacked eight codes at a time by one instruction of BMI2. Ends are left to the plain
// kernels.
#ifdef __x86_64__
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tensor/kernel_sets.h"
#include "tensor/select.h"
#include "tensor/x86_avx2_lanes.h"

// NOLINTBEGIN(portability-simd-intrinsics): this file is the non-portable half of a pair.
namespace ckfs::avx2 {
namespace {

/// 8 values, none of them NaN, rounded to 16 bits.
template <DType kTo>
CKFS_AVX2 __m128i narrow(__m256 value) {
  if constexpr (kTo == DType::F16) {
    return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
  } else {
    const __m256i wide = _mm256_srli_epi32(round_to_bf16(value), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  }
}

/// The 32 codes of 16 bytes in their order.
template <bool kHighFirst>
CKFS_AVX2 void codes_of(__m128i bytes, __m128i& first, __m128i& second) {
  const __m128i mask = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(bytes, mask);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
  first = kHighFirst ? _mm_unpacklo_epi8(high, low) : _mm_unpacklo_epi8(low, high);
  second = kHighFirst ? _mm_unpackhi_epi8(high, low) : _mm_unpackhi_epi8(low, high);
}

/// The low and the high bytes of 16 values, none of them NaN, rounded to 16 bits.
template <DType kTo>
CKFS_AVX2 void byte_tables(__m256 low, __m256 high, __m128i& low_bytes, __m128i& high_bytes) {
  if constexpr (kTo == DType::BF16) {
    // Of each four numbers their bytes 2, then their bytes 3.
    const __m256i tops =
        _mm256_setr_epi8(2, 6, 10, 14, 3, 7, 11, 15, -1, -1, -1, -1, -1, -1, -1, -1, 2, 6, 10, 14,
                         3, 7, 11, 15, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i both = _mm256_unpacklo_epi32(_mm256_shuffle_epi8(round_to_bf16(low), tops),
                                               _mm256_shuffle_epi8(round_to_bf16(high), tops));
    const __m128i even = _mm256_castsi256_si128(both);  // values 0 to 3 and 8 to 11
    const __m128i odd = _mm256_extracti128_si256(both, 1);
    low_bytes = _mm_unpacklo_epi32(even, odd);
    high_bytes = _mm_unpackhi_epi32(even, odd);
  } else if constexpr (kTo == DType::F16) {
    const __m128i mask = _mm_set1_epi16(0xff);
    const __m128i first = narrow<kTo>(low);
    const __m128i second = narrow<kTo>(high);
    low_bytes = _mm_packus_epi16(_mm_and_si128(first, mask), _mm_and_si128(second, mask));
    high_bytes = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
  }
}

template <DType kTo>
CKFS_AVX2 void store_looked_up(__m128i codes, __m256 low, __m256 high, __m128i low_bytes,
                               __m128i high_bytes, std::byte* out) {
  if constexpr (kTo == DType::F32) {
    for (std::ptrdiff_t half = 0; half < 2; ++half) {
      const __m256i wide = _mm256_cvtepu8_epi32(codes);
      const __m256 from_low = _mm256_permutevar8x32_ps(low, wide);
      const __m256 from_high = _mm256_permutevar8x32_ps(high, wide);
      const __m256 above = _mm256_castsi256_ps(_mm256_slli_epi32(wide, 28));  // bit 3 as the sign
      _mm256_storeu_ps(reinterpret_cast<float*>(out) + 8 * half,
                       _mm256_blendv_ps(from_low, from_high, above));
      codes = _mm_srli_si128(codes, 8);
    }
  } else {
    const __m128i a = _mm_shuffle_epi8(low_bytes, codes);
    const __m128i b = _mm_shuffle_epi8(high_bytes, codes);
    auto* to = reinterpret_cast<__m128i*>(out);
    _mm_storeu_si128(to, _mm_unpacklo_epi8(a, b));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi8(a, b));
  }
}

/// `count` elements of one block, which begin with a byte; a multiple of 16.
template <DType kTo, bool kHighFirst>
CKFS_AVX2 void one_block(const std::byte* in, const NibbleTable& table, float scale, float zero,
                         std::byte* out, std::size_t count) {
  constexpr std::size_t kWidth = kTo == DType::F32 ? 4 : 2;
  const __m256 factor = _mm256_set1_ps(scale);
  __m256 low = _mm256_loadu_ps(table.values.data());
  __m256 high = _mm256_loadu_ps(table.values.data() + 8);
  // Nothing is added to a zero of either sign where there is none to subtract.
  if (zero != 0.0F) {
    low = _mm256_sub_ps(low, _mm256_set1_ps(zero));
    high = _mm256_sub_ps(high, _mm256_set1_ps(zero));
  }
  low = _mm256_mul_ps(low, factor);
  high = _mm256_mul_ps(high, factor);
  __m128i low_bytes = _mm_setzero_si128();
  __m128i high_bytes = low_bytes;
  byte_tables<kTo>(low, high, low_bytes, high_bytes);
  __m128i first;
  __m128i second;
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const auto* at = reinterpret_cast<const __m128i*>(in + i / 2);
    codes_of<kHighFirst>(_mm_loadu_si128(at), first, second);
    store_looked_up<kTo>(first, low, high, low_bytes, high_bytes, out + i * kWidth);
    store_looked_up<kTo>(second, low, high, low_bytes, high_bytes, out + (i + 16) * kWidth);
  }
  if (i < count) {
    const auto* at = reinterpret_cast<const __m128i*>(in + i / 2);
    codes_of<kHighFirst>(_mm_loadl_epi64(at), first, second);
    store_looked_up<kTo>(first, low, high, low_bytes, high_bytes, out + i * kWidth);
  }
}

template <DType kTo, bool kHighFirst>
CKFS_AVX2 void nibbles_in(const std::byte* in, const NibbleTable& table, const BlockScales& scales,
                          std::byte* out, std::size_t count) {
  constexpr std::size_t kWidth = kTo == DType::F32 ? 4 : 2;
  // Counted on: a division takes as long as a block of 16 elements.
  std::size_t block = scales.first / scales.block;
  std::size_t border = scales.block - scales.first % scales.block;  // where the block ends
  for (std::size_t i = 0; i < count;) {
    if (i == border) {
      border += scales.block;
      ++block;
    }
    const std::size_t end = std::min(count, border);
    const float scale = scales.scales[block];
    const float zero = scales.zeros == nullptr ? 0.0F : scales.zeros[block];
    const std::size_t fast = i % 2 == 0 ? (end - i) / 16 * 16 : 0;
    if (fast > 0 && std::fabs(scale) <= 0x1.fffffep127F) {
      one_block<kTo, kHighFirst>(in + i / 2, table, scale, zero, out + i * kWidth, fast);
      i += fast;
      continue;
    }
    if (i % 2 == 0) {
      BlockScales rest = scales;
      rest.first += i;
      reference::scale_nibbles(kTo)(in + i / 2, table, rest, out + i * kWidth, end - i);
      i = end;
      continue;
    }
    // The second code of a byte; the first, which may be of the block before, is not used.
    const BlockScales only{&scale, &zero, 0, 2};
    std::array<std::byte, 8> pair;
    reference::scale_nibbles(kTo)(in + i / 2, table, only, pair.data(), 2);
    std::memcpy(out + i * kWidth, pair.data() + kWidth, kWidth);
    ++i;
  }
}

template <DType kTo>
void nibbles(const std::byte* in, const NibbleTable& table, const BlockScales& scales,
             std::byte* out, std::size_t count) {
  const bool finite = std::ranges::all_of(table.values, [](float v) { return std::isfinite(v); });
  if (!finite) {
    reference::scale_nibbles(kTo)(in, table, scales, out, count);
  } else if (table.high_first) {
    nibbles_in<kTo, true>(in, table, scales, out, count);
  } else {
    nibbles_in<kTo, false>(in, table, scales, out, count);
  }
}

template <DType kTo>
CKFS_AVX2 void integers(const std::byte* in, const BlockScales& scales, std::byte* out,
                        std::size_t count) {
  constexpr std::size_t kWidth = kTo == DType::F32 ? 4 : 2;
  for (std::size_t i = 0; i < count;) {
    const std::size_t block = (scales.first + i) / scales.block;
    const std::size_t end =
        scales.block == 1 ? count : std::min(count, (block + 1) * scales.block - scales.first);
    for (; i + 8 <= end; i += 8) {
      const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in + i));
      __m256 value = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
      __m256 factor = _mm256_set1_ps(scales.scales[block]);
      if (scales.block == 1) {
        factor = _mm256_loadu_ps(scales.scales + scales.first + i);
        if (scales.zeros != nullptr) {
          value = _mm256_sub_ps(value, _mm256_loadu_ps(scales.zeros + scales.first + i));
        }
      } else if (scales.zeros != nullptr) {
        value = _mm256_sub_ps(value, _mm256_set1_ps(scales.zeros[block]));
      }
      const __m256 product = _mm256_mul_ps(value, factor);
      if (_mm256_movemask_ps(_mm256_cmp_ps(product, product, _CMP_UNORD_Q)) != 0) {
        BlockScales here = scales;
        here.first += i;
        reference::scale_integers(kTo)(in + i, here, out + i * kWidth, 8);
      } else if constexpr (kTo == DType::F32) {
        _mm256_storeu_ps(reinterpret_cast<float*>(out + i * kWidth), product);
      } else {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i * kWidth), narrow<kTo>(product));
      }
    }
    if (i < end) {
      BlockScales rest = scales;
      rest.first += i;
      reference::scale_integers(kTo)(in + i, rest, out + i * kWidth, end - i);
    }
    i = end;
  }
}

CKFS_AVX2 void unpack_codes(const std::byte* in, Packing packing, std::size_t first, std::byte* out,
                            std::size_t count) {
  const auto bits = static_cast<std::size_t>(packing.bits);
  const auto plain = reference::unpack();
  if (packing.in_words) {
    plain(in, packing, first, out, count);
    return;
  }
  if (bits == 8) {
    for (std::size_t i = 0; i < count; ++i) out[i] = in[first + i] ^ std::byte{0x80};
    return;
  }
  constexpr std::uint64_t kOnes = 0x0101010101010101;
  const std::uint64_t field = kOnes * ((std::uint64_t{1} << bits) - 1);
  // As bytes: (code | 0x80) - offset never borrows, and its top bit flipped is code - offset.
  const std::uint64_t top = kOnes * 0x80;
  const std::uint64_t offset = kOnes << (bits - 1);
  const std::size_t head = std::min(count, (8 - first % 8) % 8);
  plain(in, packing, first, out, head);
  std::size_t i = head;
  const std::byte* from = in + (first + i) * bits / 8;
  for (; i + 8 <= count; i += 8, from += bits) {
    std::uint64_t word = 0;
    std::memcpy(&word, from, bits);
    const std::uint64_t codes = _pdep_u64(word, field);
    const std::uint64_t values = ((codes | top) - offset) ^ top;
    std::memcpy(out + i, &values, sizeof(values));
  }
  plain(in, packing, first + i, out + i, count - i);
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

UnpackKernel unpack() {
  return unpack_codes;
}

}  // namespace ckfs::avx2
// NOLINTEND(portability-simd-intrinsics)
#endif
