// Signed bytes with a scale for each row: LLM.int8 of bitsandbytes.
#pragma once

#include <memory>

#include "encoding/encoding.h"

namespace ckfs {

/// The value of an element of row r of [rows, columns] is f32(f32(code) * scale[r]) * f32(1 / 127):
/// two products in F32, as the library has them, not one quotient. The one companion is the scale
/// ("SCB", the row's greatest magnitude): F32 [rows]. Values are F32; decodes to F32, BF16 and F16
/// at once, bit-exact in F32 and BF16. Requires: columns > 0.
std::shared_ptr<const Encoding> row_int8_encoding(std::int64_t columns);

}  // namespace ckfs
