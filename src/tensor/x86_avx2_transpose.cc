// Transposes of small blocks with AVX2. For elements of 16/N bytes a 128-bit lane holds N of them,
// and interleaving the first half of N rows with the second half log2(N) times is a transpose of
// N x N; a 256-bit register does two such blocks, N rows apart, so that each column leaves as one
// store of 32 bytes. One network for all sizes, instead of a hand-written shuffle for each.
#ifdef __x86_64__
#include <cstring>
#include <immintrin.h>

#include "tensor/kernel_sets.h"

#define CKFS_AVX2 __attribute__((target("avx2"))) inline

namespace ckfs::avx2 {
namespace {

CKFS_AVX2 __m128i load_128(const std::byte* at) {
  __m128i value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

template <std::size_t kBytes>
CKFS_AVX2 __m256i interleave_low(__m256i a, __m256i b) {
  if constexpr (kBytes == 1) return _mm256_unpacklo_epi8(a, b);
  if constexpr (kBytes == 2) return _mm256_unpacklo_epi16(a, b);
  if constexpr (kBytes == 4) return _mm256_unpacklo_epi32(a, b);
  if constexpr (kBytes == 8) return _mm256_unpacklo_epi64(a, b);
}

template <std::size_t kBytes>
CKFS_AVX2 __m256i interleave_high(__m256i a, __m256i b) {
  if constexpr (kBytes == 1) return _mm256_unpackhi_epi8(a, b);
  if constexpr (kBytes == 2) return _mm256_unpackhi_epi16(a, b);
  if constexpr (kBytes == 4) return _mm256_unpackhi_epi32(a, b);
  if constexpr (kBytes == 8) return _mm256_unpackhi_epi64(a, b);
}

/// 2N rows of N elements to N rows of 2N.
template <std::size_t kBytes>
CKFS_AVX2 void transpose_block(const std::byte* in, std::ptrdiff_t in_stride, std::byte* out,
                               std::ptrdiff_t out_stride) {
  constexpr int kN = 16 / kBytes;
  __m256i rows[kN];
#pragma GCC unroll 16
  for (int i = 0; i < kN; ++i) {
    const std::byte* low = in + i * in_stride;
    const std::byte* high = low + kN * in_stride;
    rows[i] = _mm256_set_m128i(load_128(high), load_128(low));
  }
#pragma GCC unroll 4
  for (int width = 1; width < kN; width *= 2) {
    __m256i next[kN];
#pragma GCC unroll 8
    for (int i = 0; i < kN / 2; ++i) {
      next[2 * i] = interleave_low<kBytes>(rows[i], rows[i + kN / 2]);
      next[2 * i + 1] = interleave_high<kBytes>(rows[i], rows[i + kN / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kN; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kN; ++i) {
    std::memcpy(out + i * out_stride, &rows[i], sizeof(rows[i]));
  }
}

template <std::size_t kBytes>
CKFS_AVX2 void transpose_rows(const std::byte* in, std::ptrdiff_t in_stride, std::byte* out,
                              std::ptrdiff_t out_stride, std::int64_t rows) {
  constexpr int kRows = 32 / kBytes;
  for (std::int64_t row = 0; row < rows; row += kRows) {
    transpose_block<kBytes>(in + row * in_stride, in_stride,
                            out + row * static_cast<std::ptrdiff_t>(kBytes), out_stride);
  }
}

}  // namespace

TransposeBand transpose_band(std::size_t element_bytes) {
  switch (element_bytes) {
    case 1:
      return {32, 16, transpose_rows<1>};
    case 2:
      return {16, 8, transpose_rows<2>};
    case 4:
      return {8, 4, transpose_rows<4>};
    case 8:
      return {4, 2, transpose_rows<8>};
    default:
      return {};
  }
}

}  // namespace ckfs::avx2
#endif
