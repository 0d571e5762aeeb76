// Codes of 4 bits that index a table of 16 values, in blocks with a scale each: bitsandbytes nf4
// and fp4.
#pragma once

#include <memory>

#include "encoding/encoding.h"

namespace ckfs {

/// Element i is table[code i] * scale[i / block] in F32, rounded to `values`. Two codes are in a
/// byte, the high bits first; blocks run over the whole storage and do not end with rows.
/// Companions are, in this order:
///   absmax      the scales, F32; nested: codes of 8 bits, U8
///   quant_map   16 F32
///   nested_absmax     F32, one for each `nested_block` scales } where nested: the scale is
///   nested_quant_map  256 F32                                 } map[code] * absmax + offset, each
///                                                               step rounded to F32
struct TableCodes {
  DType values = DType::BF16;     // F32, BF16 or F16
  std::int64_t block = 64;        // even
  std::int64_t nested_block = 0;  // 0: not nested
  float nested_offset = 0;
  /// Whether code 8 is -0 where the table has a zero: so in the library's kernels for fp4, which
  /// have a table of their own, while the one in the file has +0.
  bool negative_zero = false;

  auto operator<=>(const TableCodes&) const = default;
};

/// Bit-exact in `values`. Requires: the contract of TableCodes; the offset is finite.
std::shared_ptr<const Encoding> table_codes_encoding(const TableCodes& codes);

}  // namespace ckfs
