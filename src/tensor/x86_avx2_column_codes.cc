// Codes of a few bits with AVX2 and F16C, 16 or 32 elements at a time; the ends go to the reference
// kernel.
//
// Zero points are unpacked beside the codes, for each row anew: eight of them are one load, one
// shift and one mask, which is less than what a table of unpacked ones costs to read.
#ifdef __x86_64__
#include <algorithm>
#include <bit>
#include <cstdint>

#include "tensor/float_bits.h"
#include "tensor/kernel_sets.h"
#include "tensor/select.h"
#include "tensor/x86_avx2_lanes.h"

// NOLINTBEGIN(portability-simd-intrinsics): this file is the non-portable half of a pair.
namespace ckfs::avx2 {
namespace {

/// 8 scales as F32.
template <DType kScale>
CKFS_AVX2 __m256 load_scales(const std::byte* at) {
  if constexpr (kScale == DType::F32) {
    return _mm256_castsi256_ps(load_256(at));
  } else if constexpr (kScale == DType::F16) {
    return _mm256_cvtph_ps(load_128(at));
  } else {
    static_assert(kScale == DType::BF16);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(at)), 16));
  }
}

/// Eight neighbouring fields of `kBits` that begin on a byte, of words or of a stream.
template <CodeOrder kOrder, int kBits>
CKFS_AVX2 __m256i load_fields(const std::byte* at) {
  if constexpr (kBits == 8) {
    std::uint64_t all;
    std::memcpy(&all, at, sizeof(all));
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<long long>(all)));
  } else {
    std::uint32_t all = 0;
    std::memcpy(&all, at, kBits);
    const __m256i shifts = kOrder == CodeOrder::Awq
                               ? _mm256_setr_epi32(0, 16, 4, 20, 8, 24, 12, 28)
                               : _mm256_setr_epi32(0, kBits, 2 * kBits, 3 * kBits, 4 * kBits,
                                                   5 * kBits, 6 * kBits, 7 * kBits);
    const __m256i words = _mm256_set1_epi32(static_cast<int>(all));
    return _mm256_and_si256(_mm256_srlv_epi32(words, shifts), _mm256_set1_epi32((1 << kBits) - 1));
  }
}

/// What a row needs within its loop, apart from it: stores of bytes could change the row itself.
struct Loop {
  const std::byte *low, *high, *zeros, *scales;
  __m128i shift, above;  // of the low word, of the high one
  __m256i one, zero_mask;
};

template <CodeOrder kOrder, int kBits, DType kScale, bool kStraddles>
CKFS_AVX2 __m256 eight(const Loop& loop, std::size_t i) {
  constexpr std::size_t kScaleBytes = sizeof(typename bits_of::Format<kScale>::Code);
  __m256i codes;
  if constexpr (kOrder == CodeOrder::Awq) {
    codes = load_fields<kOrder, kBits>(loop.low + i / 2);
  } else {
    codes = _mm256_srl_epi32(load_256(loop.low + 4 * i), loop.shift);
    if constexpr (kStraddles) {
      codes = _mm256_or_si256(codes, _mm256_sll_epi32(load_256(loop.high + 4 * i), loop.above));
    }
    codes = _mm256_and_si256(codes, _mm256_set1_epi32((1 << kBits) - 1));
  }
  const __m256i stored = load_fields<kOrder, kBits>(loop.zeros + i / 8 * kBits);
  const __m256i zeros = _mm256_and_si256(_mm256_add_epi32(stored, loop.one), loop.zero_mask);
  return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(codes, zeros)),
                       load_scales<kScale>(loop.scales + i * kScaleBytes));
}

CKFS_AVX2 __m256 positive_nans(__m256 value) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(bits_of::kF32Nan));
  return _mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
}

/// Elements from `i` on, which lies on a byte of the zero points; as many as are whole vectors.
/// Gives where it stopped.
template <CodeOrder kOrder, int kBits, DType kScale, DType kTo, bool kStraddles>
CKFS_AVX2 std::size_t affine_vectors(const AffineRow& row, std::size_t i, std::byte* out,
                                     std::size_t count) {
  constexpr std::size_t kOut = sizeof(typename bits_of::Format<kTo>::Code);
  constexpr std::size_t kScaleBytes = sizeof(typename bits_of::Format<kScale>::Code);
  const std::size_t blocks = (row.first + i) / 8;
  const Loop loop{
      .low = row.low + (kOrder == CodeOrder::Awq ? 4 * blocks : 4 * i),
      .high = row.high + (kOrder == CodeOrder::Awq ? 0 : 4 * i),
      .zeros = row.zeros + blocks * kBits,
      .scales = row.scales + i * kScaleBytes,
      .shift = _mm_cvtsi32_si128(row.shift),
      .above = _mm_cvtsi32_si128(32 - row.shift),
      .one = _mm256_set1_epi32(row.one),
      .zero_mask = row.wraps ? _mm256_set1_epi32((1 << kBits) - 1) : _mm256_set1_epi32(-1)};
  out += i * kOut;
  std::size_t k = 0;
  for (; i + k + kLanes <= count; k += kLanes) {
    Lanes lanes{eight<kOrder, kBits, kScale, kStraddles>(loop, k),
                eight<kOrder, kBits, kScale, kStraddles>(loop, k + 8)};
    if (_mm256_movemask_ps(_mm256_cmp_ps(lanes.low, lanes.high, _CMP_UNORD_Q)) != 0) {
      lanes = {positive_nans(lanes.low), positive_nans(lanes.high)};
    }
    store_lanes<kTo>(out + k * kOut, lanes);
  }
  return i + k;
}

template <CodeOrder kOrder, DType kScale, DType kTo>
CKFS_AVX2 void affine_elements(const AffineRow& row, std::byte* out, std::size_t count) {
  constexpr std::size_t kOut = sizeof(typename bits_of::Format<kTo>::Code);
  constexpr CodeOrder kDown = CodeOrder::Down;
  const AffineKernel plain = reference::affine(kOrder, kScale, kTo);
  std::size_t i = 0;
  if (row.first != 0) {
    i = std::min(count, 8 - row.first);
    plain(row, out, i);
  }
  if constexpr (kOrder == CodeOrder::Awq) {
    i = affine_vectors<kOrder, 4, kScale, kTo, false>(row, i, out, count);
  } else if (row.shift + row.bits > 32) {  // only 3 bits; with other widths no file has such a code
    if (row.bits == 3) i = affine_vectors<kDown, 3, kScale, kTo, true>(row, i, out, count);
  } else if (row.bits == 2) {
    i = affine_vectors<kDown, 2, kScale, kTo, false>(row, i, out, count);
  } else if (row.bits == 3) {
    i = affine_vectors<kDown, 3, kScale, kTo, false>(row, i, out, count);
  } else if (row.bits == 4) {
    i = affine_vectors<kDown, 4, kScale, kTo, false>(row, i, out, count);
  } else if (row.bits == 8) {
    i = affine_vectors<kDown, 8, kScale, kTo, false>(row, i, out, count);
  }
  if (i < count) plain(advanced(row, kOrder, kScale, i), out + i * kOut, count - i);
}

}  // namespace

AffineKernel affine(CodeOrder order, DType scale, DType to) {
  return select_affine(order, scale, to,
                       []<CodeOrder kOrder, DType kScale, DType kTo>() -> AffineKernel {
                         return affine_elements<kOrder, kScale, kTo>;
                       });
}

}  // namespace ckfs::avx2
// NOLINTEND(portability-simd-intrinsics)
#endif
