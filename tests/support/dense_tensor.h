// Tensors as lists that say for every element where it comes from, and the operations of TensorExpr
// carried out on such lists, element by element, never on boxes: what an expression must be.
#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

#include "catalog/catalog.h"
#include "expr/tensor_expr.h"

namespace ckfs {

/// Where an element of the target comes from, and what happens to it on the way.
struct Origin {
  StorageId storage = Box::kConstant;  // kConstant: no storage
  std::int64_t index = 0;              // element of the storage; the bits of a constant
  Program program;

  bool operator==(const Origin&) const = default;
};

/// A tensor as the list of its elements in row-major order.
struct DenseTensor {
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::vector<Origin> elements;

  bool operator==(const DenseTensor&) const = default;
};

inline std::int64_t numel_of(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

DenseTensor dense_stored(const Catalog& catalog, TensorId tensor);
DenseTensor dense_transpose(const DenseTensor& tensor, const std::vector<std::int64_t>& order);
DenseTensor dense_slice(const DenseTensor& tensor, std::int64_t dim, std::int64_t begin,
                        std::int64_t count, std::int64_t step);
DenseTensor dense_pad(const DenseTensor& tensor, std::int64_t dim, std::int64_t before,
                      std::int64_t after);
DenseTensor dense_filled(DType dtype, const std::vector<std::int64_t>& shape, std::uint64_t bits);
DenseTensor dense_then(const DenseTensor& tensor, const Step& step);
DenseTensor dense_concat(const std::vector<DenseTensor>& parts, std::int64_t dim);
DenseTensor dense_stack(const std::vector<DenseTensor>& parts, std::int64_t dim);
DenseTensor dense_interleave(const std::vector<DenseTensor>& parts, std::int64_t dim);

/// What the boxes of `expr` say of each element. Fails the running test when they do not visit each
/// exactly once, or break a rule of their normal form.
DenseTensor dense_boxes(const TensorExpr& expr);

}  // namespace ckfs
