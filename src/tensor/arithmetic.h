// Steps on values that are no casts: arithmetic with one operand, and what is done to special
// values. Recipes name them (docs/ARCHITECTURE.md, element program); they are plain loops, for they
// run beside reads of the same bytes and are not where the time goes.
//
// In place on `count` elements at `values`, at any alignment, for F64, F32, F16 and BF16. Each
// result is rounded once to the dtype, to nearest even: F16 and BF16 are computed in F32, of which
// every product or sum of theirs is then rounded (as torch does on CPU). NaN: as tensor/kernel.h
// says.
#pragma once

#include <cstddef>

#include "tensor/dtype.h"

namespace ckfs {

void multiply(DType dtype, double operand, std::byte* values, std::size_t count);
void add(DType dtype, double operand, std::byte* values, std::size_t count);

/// Subnormal values become zero of the same sign.
void flush_subnormals(DType dtype, std::byte* values, std::size_t count);

/// Every NaN becomes the positive quiet NaN.
void canonical_nan(DType dtype, std::byte* values, std::size_t count);

}  // namespace ckfs
