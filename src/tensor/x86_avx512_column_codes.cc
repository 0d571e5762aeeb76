// Codes with zero points and scales by column with AVX-512, 32 elements at a time, as in
// x86_avx2_column_codes.cc, which gets what is left. A product with an F16 scale is zero or at
// least 2^-24, so that the instruction which rounds to BF16, and takes subnormal numbers for zero,
// serves there; integer rounding serves the other scales.
#ifdef __x86_64__
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands inside its own intrinsics for variables of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

#include "tensor/float_bits.h"
#include "tensor/kernel_sets.h"
#include "tensor/select.h"

#define CKFS_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) inline

// NOLINTBEGIN(portability-simd-intrinsics): this file is the non-portable half of a pair.
namespace ckfs::avx512 {
namespace {

constexpr std::size_t kLanes = 32;

/// 16 scales as F32.
template <DType kScale>
CKFS_AVX512 __m512 load_scales(const std::byte* at) {
  if constexpr (kScale == DType::F32) {
    return _mm512_loadu_ps(at);
  } else {
    const __m256i codes = _mm256_loadu_epi16(at);
    if constexpr (kScale == DType::F16) return _mm512_cvtph_ps(codes);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(codes), 16));
  }
}

/// 16 neighbouring fields of `kBits` that begin on a byte, of words or of a stream.
template <CodeOrder kOrder, int kBits>
CKFS_AVX512 __m512i load_fields(const std::byte* at) {
  if constexpr (kBits == 8) {
    return _mm512_cvtepu8_epi32(_mm_loadu_epi8(at));
  } else {
    std::uint64_t all = 0;
    std::memcpy(&all, at, std::size_t{2} * kBits);
    // Eight fields in each half.
    constexpr int kHalf = 8 * kBits;
    all = (all & ((std::uint64_t{1} << kHalf) - 1)) | all >> kHalf << 32;
    const __m512i halves = _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
        _mm512_castsi128_si512(_mm_cvtsi64_si128(static_cast<long long>(all))));
    const __m256i shifts = kOrder == CodeOrder::Awq
                               ? _mm256_setr_epi32(0, 16, 4, 20, 8, 24, 12, 28)
                               : _mm256_setr_epi32(0, kBits, 2 * kBits, 3 * kBits, 4 * kBits,
                                                   5 * kBits, 6 * kBits, 7 * kBits);
    return _mm512_and_si512(_mm512_srlv_epi32(halves, _mm512_broadcast_i64x4(shifts)),
                            _mm512_set1_epi32((1 << kBits) - 1));
  }
}

/// What a row needs within its loop, apart from it: stores of bytes could change the row itself.
struct Loop {
  const std::byte *low, *high, *zeros, *scales;
  __m128i shift, above;  // of the low word, of the high one
  __m512i one, zero_mask;
};

template <CodeOrder kOrder, int kBits, DType kScale, bool kStraddles>
CKFS_AVX512 __m512 sixteen(const Loop& loop, std::size_t i) {
  constexpr std::size_t kScaleBytes = sizeof(typename bits_of::Format<kScale>::Code);
  __m512i codes;
  if constexpr (kOrder == CodeOrder::Awq) {
    codes = load_fields<kOrder, kBits>(loop.low + i / 2);
  } else {
    codes = _mm512_srl_epi32(_mm512_loadu_epi32(loop.low + 4 * i), loop.shift);
    if constexpr (kStraddles) {
      const __m512i high = _mm512_loadu_epi32(loop.high + 4 * i);
      codes = _mm512_or_si512(codes, _mm512_sll_epi32(high, loop.above));
    }
    codes = _mm512_and_si512(codes, _mm512_set1_epi32((1 << kBits) - 1));
  }
  const __m512i stored = load_fields<kOrder, kBits>(loop.zeros + i / 8 * kBits);
  const __m512i zeros = _mm512_and_si512(_mm512_add_epi32(stored, loop.one), loop.zero_mask);
  return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(codes, zeros)),
                       load_scales<kScale>(loop.scales + i * kScaleBytes));
}

CKFS_AVX512 __m512 positive_nans(__m512 value) {
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_blend_ps(
      nan, value, _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits_of::kF32Nan))));
}

/// 16 F32, no payload in a NaN, to the nearest BF16.
CKFS_AVX512 __m256i round_to_bf16(__m512 value) {
  const __m512i f32 = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(f32, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_add_epi32(f32, half), 16));
}

template <DType kScale, DType kTo>
CKFS_AVX512 void store(std::byte* out, __m512 low, __m512 high) {
  if constexpr (kTo == DType::F32) {
    _mm512_storeu_ps(out, low);
    _mm512_storeu_ps(out + 64, high);
  } else if constexpr (kTo == DType::BF16 && kScale == DType::F16) {
    _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  } else if constexpr (kTo == DType::BF16) {
    _mm256_storeu_epi16(out, round_to_bf16(low));
    _mm256_storeu_epi16(out + 32, round_to_bf16(high));
  } else {
    _mm256_storeu_epi16(out, _mm512_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT));
    _mm256_storeu_epi16(out + 32, _mm512_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT));
  }
}

/// As many elements as are whole vectors, of a row whose first one lies on a byte of the zero
/// points. Gives their number.
template <CodeOrder kOrder, int kBits, DType kScale, DType kTo, bool kStraddles>
CKFS_AVX512 std::size_t affine_vectors(const AffineRow& row, std::byte* out, std::size_t count) {
  constexpr std::size_t kOut = sizeof(typename bits_of::Format<kTo>::Code);
  const Loop loop{
      .low = row.low,
      .high = row.high,
      .zeros = row.zeros,
      .scales = row.scales,
      .shift = _mm_cvtsi32_si128(row.shift),
      .above = _mm_cvtsi32_si128(32 - row.shift),
      .one = _mm512_set1_epi32(row.one),
      .zero_mask = row.wraps ? _mm512_set1_epi32((1 << kBits) - 1) : _mm512_set1_epi32(-1)};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    __m512 low = sixteen<kOrder, kBits, kScale, kStraddles>(loop, i);
    __m512 high = sixteen<kOrder, kBits, kScale, kStraddles>(loop, i + 16);
    if (_mm512_cmp_ps_mask(low, high, _CMP_UNORD_Q) != 0) {
      low = positive_nans(low);
      high = positive_nans(high);
    }
    store<kScale, kTo>(out + i * kOut, low, high);
  }
  return i;
}

template <CodeOrder kOrder, DType kScale, DType kTo>
CKFS_AVX512 void affine_elements(const AffineRow& row, std::byte* out, std::size_t count) {
  constexpr CodeOrder kDown = CodeOrder::Down;
  const AffineKernel rest = avx2::affine(kOrder, kScale, kTo);
  std::size_t i = row.first == 0 ? 0 : std::min(count, 8 - row.first);
  if (i > 0) rest(row, out, i);
  const AffineRow whole = advanced(row, kOrder, kScale, i);
  std::byte* const at = out + bytes_of(kTo, static_cast<std::int64_t>(i));
  const std::size_t left = count - i;
  if constexpr (kOrder == CodeOrder::Awq) {
    i += affine_vectors<kOrder, 4, kScale, kTo, false>(whole, at, left);
  } else if (row.shift + row.bits > 32) {  // only 3 bits; with other widths no file has such a code
    if (row.bits == 3) i += affine_vectors<kDown, 3, kScale, kTo, true>(whole, at, left);
  } else if (row.bits == 2) {
    i += affine_vectors<kDown, 2, kScale, kTo, false>(whole, at, left);
  } else if (row.bits == 3) {
    i += affine_vectors<kDown, 3, kScale, kTo, false>(whole, at, left);
  } else if (row.bits == 4) {
    i += affine_vectors<kDown, 4, kScale, kTo, false>(whole, at, left);
  } else if (row.bits == 8) {
    i += affine_vectors<kDown, 8, kScale, kTo, false>(whole, at, left);
  }
  if (i == count) return;
  rest(advanced(row, kOrder, kScale, i), out + bytes_of(kTo, static_cast<std::int64_t>(i)),
       count - i);
}

}  // namespace

AffineKernel affine(CodeOrder order, DType scale, DType to) {
  return select_affine(order, scale, to,
                       []<CodeOrder kOrder, DType kScale, DType kTo>() -> AffineKernel {
                         return affine_elements<kOrder, kScale, kTo>;
                       });
}

}  // namespace ckfs::avx512
// NOLINTEND(portability-simd-intrinsics)
#endif
