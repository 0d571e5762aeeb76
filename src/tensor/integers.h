// The dtypes that are whole numbers.
#pragma once

#include "tensor/dtype.h"

namespace ckfs {

inline bool is_signed_integer(DType dtype) {
  return dtype == DType::I8 || dtype == DType::I16 || dtype == DType::I32 || dtype == DType::I64;
}

inline bool is_integer(DType dtype) {
  return is_signed_integer(dtype) || dtype == DType::U8 || dtype == DType::U16 ||
         dtype == DType::U32 || dtype == DType::U64;
}

/// The bits of the largest number: a float with one less of mantissa holds all of the dtype.
/// Requires: is_integer().
inline int bits_of_numbers(DType dtype) {
  return bits(dtype) - (is_signed_integer(dtype) ? 1 : 0);
}

}  // namespace ckfs
