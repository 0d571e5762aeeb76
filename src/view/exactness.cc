// Labels: a property of a pair of dtypes, not of the values at hand. A tensor whose values happen
// to survive a rounding is lossy all the same: the label is known before any byte is read.
#include "view/view.h"

namespace ckfs {
namespace {

struct FloatFormat {
  int exponent_bits = 0;
  int mantissa_bits = 0;
};

/// Of the floats that are cast; {0, 0} for all others.
FloatFormat float_format(DType dtype) {
  switch (dtype) {
    case DType::F16:
      return {5, 10};
    case DType::BF16:
      return {8, 7};
    case DType::F32:
      return {8, 23};
    case DType::F64:
      return {11, 52};
    default:
      return {};
  }
}

}  // namespace

Exactness exactness_of(bool decoded, DType from, DType to) {
  if (decoded) {
    // The reference tools give the F32 product and its rounding to BF16 (DeepSeek-V3
    // inference/fp8_cast_bf16.py); none gives F16.
    return to == DType::F32 || to == DType::BF16 ? Exactness::BitExact : Exactness::Lossy;
  }
  if (from == to) return Exactness::BitExact;
  const FloatFormat narrow = float_format(from);
  const FloatFormat wide = float_format(to);
  return narrow.exponent_bits <= wide.exponent_bits && narrow.mantissa_bits <= wide.mantissa_bits
             ? Exactness::Exact
             : Exactness::Lossy;
}

}  // namespace ckfs
