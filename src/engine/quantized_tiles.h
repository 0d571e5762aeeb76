// What a quantizer makes, in tiles: how large they are, and what of the source they need. The parts
// of Evaluator that compute them are in quantized_tiles.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/byte_range.h"
#include "base/byte_source.h"
#include "container/file_layout.h"
#include "engine/gather.h"
#include "expr/tensor_expr.h"

namespace ckfs {

/// Ranges in a hint: each costs a system call or more, and a matrix of short rows has 100,000 of
/// them in a tile. The reader of the rest has many requests in flight.
inline constexpr std::size_t kMostHints = 4096;

/// Bytes of an element.
inline std::uint64_t width_of(const TensorExpr& expr) {
  return bytes_of(expr.dtype(), 1);
}

/// The bytes of a tile of what a quantizer makes.
std::uint64_t quantized_tile(const QuantizedPart& part, TileBytes most);

/// Appends the source bytes that the values for a tile are read from, up to some more ranges than
/// kMostHints.
void add_value_ranges(const FileLayout& file, const QuantizedPart& part, ByteRange tile,
                      std::vector<FileRange>& ranges);

}  // namespace ckfs
