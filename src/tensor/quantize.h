// Kernels that make codes of values: the opposite direction of tensor/kernel.h, with the same
// rules. Each exists as a plain loop and as a fast one (KernelSet); both give the same bits for all
// inputs but NaN, whose codes may differ where the definition says so.
//
// Values are BF16, F16 or F32 and are widened to F32 first, which is exact. Every product, quotient
// and sum is rounded to F32; where the arithmetic says so, then to the values' dtype ("rounded").
// Rounding is to nearest, ties to even. There is no fused multiply-add, and no product with a
// reciprocal where a tool divides.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"
#include "tensor/kernel.h"

namespace ckfs {

/// What a value becomes, one byte each.
enum class CodeKind : std::uint8_t {
  E4M3,  // F8_E4M3, after a clamp to +-448; the sign of zero is kept; a NaN is 0x7f
  I8,    // a whole number from -128 to 127; a NaN is 0
  I4,    // a whole number from -8 to 7, stored plus 8; a NaN is 8
  E2M1,  // an FP4 code, after a clamp to +-6; a negative value that becomes 0 is 8, -0 itself 0; a
         // NaN is 0
  NF4,   // the number of midpoints of the nf4 table below the value; a NaN is 0
};

/// The operation on a value before it is a code.
enum class CodeArithmetic : std::uint8_t {
  Product,          // value * scale
  Quotient,         // value / scale
  RoundedQuotient,  // value / scale, rounded
  RoundedSum,       // value / scale, rounded, plus zero, rounded
};

/// Element i has scales[(first + i) / group], and zeros[] of the same number.
struct GroupScales {
  const float* scales = nullptr;
  const float* zeros = nullptr;  // of CodeArithmetic::RoundedSum
  std::size_t first = 0;
  std::size_t group = 1;
};

/// out[i] = the code of element i of `in`.
using QuantizeKernel = void (*)(const std::byte* in, const GroupScales& scales, std::byte* out,
                                std::size_t count);

/// For `from` in BF16, F16, F32, and the pairs that a quantizer has (encoding/quantizers.h); else
/// nullptr.
QuantizeKernel find_quantize(DType from, CodeKind kind, CodeArithmetic arithmetic,
                             KernelSet set = KernelSet::Fast);

/// Forms whose groups of consecutive values each have a scale that follows from their largest
/// magnitude alone.
enum class GroupForm : std::uint8_t {
  Int4,   // compressed-tensors: the magnitude / 7.5 in the values' dtype
  Mxfp4,  // powers of two in a byte
  Mxfp8,
  Nvfp4,  // E4M3, times a global scale
  Nf4,    // bitsandbytes: whole blocks
};

/// What values are divided by (nf4: multiplied with), and the bits that are stored.
struct GroupScale {
  float used = 1;
  std::uint32_t stored = 0;
};

/// The scale of a group of `from` whose largest magnitude is `top`; `global` is that of Nvfp4.
GroupScale group_scale(GroupForm form, DType from, float top, float global);

/// Whole groups of `values` consecutive values, a multiple of 16, beginning at the first.
struct Groups {
  std::size_t values = 16;
  std::size_t count = 0;
  float global = 1;  // of GroupForm::Nvfp4
};

/// Maxima, scales and codes of many groups in one pass. codes: one byte each (Mxfp8) or two a byte,
/// the first in the low half (Nf4: in the high one); scales: the stored bits, of one byte each
/// (Mxfp4, Mxfp8, Nvfp4), of the values' dtype (Int4) or of F32 (Nf4). Either may be nullptr.
/// A scale in F32 that is a NaN has any bits of a NaN.
using QuantizeGroupsKernel = void (*)(const std::byte* in, const Groups& groups, std::byte* codes,
                                      std::byte* scales);
/// For BF16, F16, F32; else nullptr.
QuantizeGroupsKernel find_quantize_groups(GroupForm form, DType from,
                                          KernelSet set = KernelSet::Fast);

/// maxima[i / group] = the largest of itself and |in[i]|, for count elements. A NaN is larger than
/// all, and stays.
using MaximaKernel = void (*)(const std::byte* in, std::size_t group, float* maxima,
                              std::size_t count);
/// For BF16, F16, F32; else nullptr.
MaximaKernel find_maxima(DType from, KernelSet set = KernelSet::Fast);

/// lows and highs: the least and the largest of themselves and in[i], as maxima. A NaN stays.
using ExtremesKernel = void (*)(const std::byte* in, std::size_t group, float* lows, float* highs,
                                std::size_t count);
/// For BF16, F16, F32; else nullptr. A plain loop only.
ExtremesKernel find_extremes(DType from);

/// The F32 value rounded to BF16, F16 or F32, and as F32 again. A NaN is a NaN.
float rounded_to(DType dtype, float value);

/// The code that CodeKind::E4M3 says.
std::uint8_t e4m3_code(float value);

/// The table of bitsandbytes' nf4, ascending.
inline constexpr float kNf4Table[16] = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};

}  // namespace ckfs
