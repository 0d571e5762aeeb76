// FP4 with a power of two for each 32 values, as FP8 with a power of two for each 128 x 128: no
// value changes, or an error.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "encoding/quantizer.h"

namespace ckfs {

/// QuantizedForm::Fp4AsFp8. The second tensor has the scales in F8_E8M0. Errors: Unsupported: 128
/// does not divide the shape, or it is not a matrix; values that are not BF16.
Result<std::shared_ptr<const Quantizer>> make_fp4_as_fp8(DType from,
                                                         std::span<const std::int64_t> shape);

}  // namespace ckfs
