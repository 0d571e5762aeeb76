// The arithmetic of boxes behind the operations of TensorExpr. Pure functions on values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "expr/tensor_expr.h"

namespace ckfs {

/// Boxes that an operation may make of a tensor: bounds the memory that a hostile shape or recipe
/// can ask for. The largest known need, all experts of all layers of a 384 x 61 model in one
/// tensor, is a tenth. A stored tensor may have more of its own, because its source has bytes for
/// each. It can be cast, shown (not in containers that cut tensors into chunks), and sliced along
/// its outermost dimension into pieces of at most kMaxBoxes, but neither transposed nor joined with
/// others.
inline constexpr std::size_t kMaxBoxes = std::size_t{1} << 18;

/// The largest difference between two target indices that `loops` visit.
std::int64_t target_span(std::span<const Loop> loops);

/// Sorts the loops, drops those of one turn, and merges an outer loop with the inner one that it
/// merely continues.
std::vector<Loop> normalize(std::vector<Loop> loops);

/// `box` with turns first, first + every, ... (count of them) of loop number `index` only.
/// Requires: count > 0, and the turns exist.
Box restrict_loop(const Box& box, std::size_t index, std::int64_t first, std::int64_t count,
                  std::int64_t every = 1);

/// Cuts boxes so that each result is aligned to each of `blocks`: all indices that its loops with
/// strides not divisible by the block can reach lie in one block, so that index / block and index %
/// block are affine in the loops' turns. Requires: each block is positive and divides the one
/// before. Errors: Unsupported (more than kMaxBoxes).
Result<std::vector<Box>> align(std::vector<Box> boxes, std::span<const std::int64_t> blocks);

/// The same boxes by target_offset, neighbours that continue each other joined.
std::vector<Box> join(std::vector<Box> boxes);

}  // namespace ckfs
