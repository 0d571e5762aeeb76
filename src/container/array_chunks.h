// An array as a grid of chunks: their order, and the part of the tensor in each. Arithmetic on
// indices; keeps nothing for a chunk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "container/chunking.h"
#include "expr/tensor_expr.h"
#include "tensor/dtype.h"

namespace ckfs {

/// How a stored chunk's dimensions may be ordered.
enum class ChunkOrders : std::uint8_t {
  Any,        // zarr3, by a codec
  AsOrTurned  // zarr2: as they are, or in reverse
};

/// Immutable; many arrays share one.
class ArrayChunks {
 public:
  /// Requires: what choose_chunk() does.
  ArrayChunks(DType dtype, std::span<const std::int64_t> shape, std::span<const std::int64_t> split,
              const ArraySource& source, ChunkOrders orders, std::uint64_t most = kMostChunkBytes);

  DType dtype() const { return dtype_; }
  std::span<const std::int64_t> shape() const { return shape_; }
  std::span<const std::int64_t> chunk() const { return chunk_; }
  /// Stored dimension d is dimension order()[d]: the source's order, as far as that can be said.
  /// Empty: as they are.
  std::span<const std::int64_t> order() const { return order_; }
  /// Chunks along each dimension.
  std::span<const std::int64_t> grid() const { return grid_; }

  std::uint64_t count() const { return count_; }
  std::uint64_t bytes() const { return bytes_; }  // of each
  /// The cost of choosing the chunk: ChosenChunk::steps.
  std::uint64_t steps() const { return steps_; }

  // Chunks are numbered in the order of the source's files: by source tensor, and all chunks of one
  // together.

  std::vector<std::int64_t> index(std::uint64_t number) const;
  std::uint64_t number(std::span<const std::int64_t> index) const;

  /// How many chunks of one source tensor, from each multiple of that number on, have pieces of its
  /// rows so near to each other that a read of one reads all. 1: no chunks do.
  std::uint64_t together() const { return together_; }

  /// The expression of `count` chunks of a tensor from `number` on, one after another. Requires:
  /// check_sliceable(), and of this shape; count is 1, or together() and number a multiple of it.
  /// Errors: Unsupported (too many boxes; never of one chunk).
  Result<TensorExpr> expr(const TensorExpr& tensor, std::uint64_t number,
                          std::uint64_t count) const;

 private:
  /// A digit of a chunk's number: how far one step of it moves along a dimension of the grid.
  struct Digit {
    std::size_t dim = 0;
    std::int64_t step = 1;
    std::int64_t count = 1;
  };

  DType dtype_;
  std::vector<std::int64_t> shape_, chunk_, order_, grid_;
  std::vector<Digit> digits_;  // the slowest first
  std::size_t within_ = 0;     // those from here on stay in one source tensor
  std::uint64_t together_ = 1;
  std::uint64_t count_ = 1;
  std::uint64_t bytes_ = 0;
  std::uint64_t steps_ = 0;
};

/// Whether chunks can be cut out of the expression. Errors: Unsupported (too many boxes).
Result<void> check_sliceable(const TensorExpr& expr);

}  // namespace ckfs
