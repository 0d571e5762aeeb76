// Encodings of kinds that no encoding of ckfs has in this form, decoded one element after another:
// they hold the interface (encoding/encoding.h), and all that asks it, to what it must be able to
// carry.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "encoding/encoding.h"

namespace ckfs {

struct TestEncoding {
  std::shared_ptr<const Encoding> encoding;
  std::vector<std::uint64_t> companions;  // their bytes
};

/// GGUF's q8_0: 32 codes of 8 bits behind their own F16 scale, 34 bytes. Values are F32; decodes to
/// BF16 at once, too.
TestEncoding scale_inside();

/// Codes of 3 bits, 32 in three 32-bit words, with a scale for each `group` of elements; values in
/// the scale's dtype (F16 or BF16), as compressed-tensors has them.
TestEncoding packed_odd(std::int64_t numel, std::int64_t group, DType scale);

/// Codes of 4 bits of a matrix of `columns`, eight rows in a word (GPTQ), whose row of scales (F16
/// [groups, columns]) is chosen by a look-up of the row (I32 [rows]). A look-up beyond the groups
/// wraps around, or is Corrupt where `strict`.
TestEncoding act_order(std::int64_t rows, std::int64_t columns, std::int64_t groups,
                       bool strict = false);

}  // namespace ckfs
