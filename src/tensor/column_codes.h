// Kernels for weights stored as codes of a few bits with a zero point and a scale for each column
// (GPTQ, AWQ), or as rows of signed bytes with two factors (bitsandbytes). The contract of kernels
// in tensor/kernel.h holds here too, except for NaN: a NaN that is computed here becomes the
// positive quiet NaN of the target dtype, because codes have no sign of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"
#include "tensor/kernel.h"

namespace ckfs {

/// How codes lie in 32-bit words.
enum class CodeOrder : std::uint8_t {
  Down,  // a word holds one column of several rows, low bits first (GPTQ)
  Awq,   // a word holds 8 columns of one row in 4 bits each: nibble k is column
         // {0, 2, 4, 6, 1, 3, 5, 7}[k] (AutoAWQ's GEMM layout)
};

/// Elements of one row of a matrix of unsigned codes, in which each column has a zero point and a
/// scale of its own. Words and scales at any alignment.
struct AffineRow {
  int bits = 4;  // of a code: 2, 3, 4 or 8; with CodeOrder::Awq 4

  /// Down: the code of element i is the `bits` bits from bit `shift` on of the 64 bits whose halves
  /// are word i at `low` and word i at `high`. Where a code lies within its low word, `high` may be
  /// anything that can be read, as `low` itself. Awq: element i lies in word (first + i) / 8 of
  /// `low`, as column (first + i) % 8.
  const std::byte* low = nullptr;
  const std::byte* high = nullptr;
  int shift = 0;  // below 32

  /// Zero points have as many bits. Down: one stream, low bits first, where field first + i is that
  /// of element i. Awq: as the codes. No byte behind the last field is touched; Awq: none behind
  /// its word.
  const std::byte* zeros = nullptr;
  std::size_t first = 0;              // < 8
  std::int32_t one = 0;               // added to every zero point: 0 or 1
  bool wraps = false;                 // whether that sum wraps around in its bits
  const std::byte* scales = nullptr;  // that of element 0; one for each column
};

/// out[i] = cast<to>( f32(code - zero point) * f32(scale) ), each step rounded.
using AffineKernel = void (*)(const AffineRow& row, std::byte* out, std::size_t count);

/// For `scale` and `to` in F32, F16, BF16; else nullptr.
AffineKernel find_affine(CodeOrder order, DType scale, DType to, KernelSet set = KernelSet::Fast);

/// out[i] = f32(f32(in[i]) * scale) * factor, the codes signed bytes: two products, each rounded.
/// One plain loop, which compilers make vectors of: it has no twin. Requires: in.size() ==
/// out.size().
void scale_int8(std::span<const std::byte> in, float scale, float factor, std::span<float> out);

}  // namespace ckfs
