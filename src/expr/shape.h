// Arithmetic on shapes for the operations of TensorExpr.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

namespace ckfs {

/// Elements that one step along each dimension moves. Requires: no extent is zero, and the product
/// is an int64.
std::vector<std::int64_t> row_major_strides(std::span<const std::int64_t> shape);

/// The number of elements. Errors: InvalidArgument (negative, too many, 2^61 bytes of the dtype or
/// more, or of less than a byte each and no whole bytes).
Result<std::int64_t> check_shape(DType dtype, std::span<const std::int64_t> shape);

/// A dimension as the middle one of three: the sizes around it.
struct Around {
  std::int64_t extent = 0;
  std::int64_t inner = 0;  // elements that one step of the dimension moves
  std::int64_t block = 0;  // elements that one step of the dimension before it moves
};

/// Requires: dim is a dimension of `shape`, which has passed check_shape() or is stored.
Around around(std::span<const std::int64_t> shape, std::int64_t dim);

}  // namespace ckfs
