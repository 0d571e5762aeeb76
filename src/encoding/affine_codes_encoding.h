// Packed unsigned codes of a matrix in which each column of each group of rows has a zero point and
// a scale: GPTQ and AWQ.
#pragma once

#include <memory>

#include "encoding/encoding.h"
#include "tensor/column_codes.h"

namespace ckfs {

/// The value of element (r, c) of the storage, seen as [rows, columns], is f32(code - zero[g][c]) *
/// f32(scale[g][c]) in F32, with g the group of row r. Rows are a layer's inputs and columns its
/// outputs: the order of the files, in which a weight of shape [columns, rows] is transposed.
/// Companions are, in this order:
///   scales      [groups, columns] of dtype `scale`
///   zero points [groups, columns] packed along rows, `bits` each, in the order of the codes
///   g_idx       [rows] I32, the group of each row; absent where `lookup` is None
struct AffineCodes {
  enum class Zeros : std::uint8_t {
    Stored,          // AWQ, gptq_v2
    PlusOne,         // GPTQ v1: one more than stored
    PlusOneWrapped,  // the same in as many bits: all ones stand for 0 (GPTQModel's dequantizer)
    PlusOneInWords,  // one is added to each field of a 32-bit word at once, with carries into the
                     // next field (what undoes the subtraction of GPTQModel's writer before 7);
                     // not for 3 bits
  };
  enum class Lookup : std::uint8_t {
    None,     // row r is of group r / group_rows
    Checked,  // so it is, and g_idx must say the same
    Any,      // g_idx decides ("act order")
  };

  CodeOrder order = CodeOrder::Down;
  int bits = 4;              // 2, 3, 4 or 8; Awq: 4
  DType scale = DType::F16;  // F16, BF16 or F32
  Zeros zeros = Zeros::Stored;
  Lookup lookup = Lookup::None;
  std::int64_t rows = 0;     // Down: a multiple of 32 / bits, of 32 for 3 bits
  std::int64_t columns = 0;  // the same, Awq: of 8
  std::int64_t groups = 0;
  std::int64_t group_rows = 0;  // the last group may have fewer

  auto operator<=>(const AffineCodes&) const = default;
};

/// Values are F32; decodes to F32, BF16 and F16 at once. Bit-exact in all three: the product of a
/// 16-bit scale is exact in F32, that of an F32 scale is rounded to F32 first by the tools, too.
/// Requires: the contract of AffineCodes; sizes are positive; groups is ceil(rows / group_rows)
/// unless `lookup` is Any. Decoding may fail (Corrupt): g_idx names no group, or, Checked, not the
/// row's.
std::shared_ptr<const Encoding> affine_codes_encoding(const AffineCodes& codes);

}  // namespace ckfs
