// Steps on values other than casts (Step in expr/tensor_expr.h): arithmetic with one operand, and
// the treatment of special values. Plain loops: they run beside reads of the same bytes, and little
// time goes there.
//
// In place on `count` elements at `values`, at any alignment, for F64, F32, F16 and BF16. F64 is
// computed in F64, all others in F32, to which the operand is rounded first; the result of F16 and
// BF16 is then rounded again, to the dtype, as torch does on CPU. Rounding is to nearest, ties to
// even. NaN: as tensor/kernel.h says.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace ckfs {

void multiply(DType dtype, double operand, std::byte* values, std::size_t count);
void add(DType dtype, double operand, std::byte* values, std::size_t count);

/// Subnormal values become zero of the same sign.
void flush_subnormals(DType dtype, std::byte* values, std::size_t count);

/// `cast` is what `values` were cast to: each NaN gets the sign and the first bits of the payload
/// of the value; where these are zero, the last bit is set, as NumPy has it (F16). Both of F64,
/// F32, F16 and BF16.
void keep_payloads(DType from, const std::byte* values, DType to, std::byte* cast,
                   std::size_t count);

/// Every NaN becomes the quiet NaN of its sign: what a cast to a wider dtype and back changes.
void quiet_nans(DType dtype, std::byte* values, std::size_t count);

/// Every NaN becomes the positive quiet NaN.
void canonical_nan(DType dtype, std::byte* values, std::size_t count);

}  // namespace ckfs
