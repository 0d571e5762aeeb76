// One rule for each operation: which element of the operand stands at an index of the result. To
// walk every index costs more than any cleverness would, and leaves nothing to be wrong in the same
// way as the boxes.
#include "support/dense_tensor.h"

#include <gtest/gtest.h>
#include <numeric>
#include <utility>

#include "support/naive_view.h"

namespace ckfs {
namespace {

using Shape = std::vector<std::int64_t>;

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

// The digits of a flat index.
Shape index_of(std::int64_t flat, const Shape& shape) {
  Shape index(shape.size());
  for (std::size_t d = shape.size(); d > 0; --d) {
    index[d - 1] = flat % shape[d - 1];
    flat /= shape[d - 1];
  }
  return index;
}

std::int64_t flat_of(const Shape& index, const Shape& shape) {
  std::int64_t flat = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + index[d];
  return flat;
}

// The tensor of `shape` whose element at an index is `element(index)`.
template <typename Function>
DenseTensor dense_from(DType dtype, Shape shape, const Function& element) {
  DenseTensor tensor{dtype, std::move(shape), {}};
  const std::int64_t numel = numel_of(tensor.shape);
  for (std::int64_t i = 0; i < numel; ++i) {
    tensor.elements.push_back(element(index_of(i, tensor.shape)));
  }
  return tensor;
}

}  // namespace

DenseTensor dense_stored(const Catalog& catalog, TensorId id) {
  const StoredTensor& stored = catalog.tensor(id);
  const Shape shape(stored.shape.begin(), stored.shape.end());
  return dense_from(catalog.value_dtype(id), shape, [&](const Shape& index) {
    if (stored.boxes.empty()) return Origin{stored.storage, flat_of(index, shape), {}};
    std::vector<Origin> found;
    for (const StorageBox& box : stored.boxes) {
      std::int64_t element = box.offset;
      bool inside = true;
      for (std::size_t d = 0; d < index.size(); ++d) {
        const std::int64_t k = index[d] - box.begin[d];
        inside = inside && k >= 0 && k < box.count[d];
        element += k * box.stride[d];
      }
      if (inside) found.push_back({box.storage, element, {}});
    }
    EXPECT_EQ(found.size(), 1U) << stored.name << " at " << testing::PrintToString(index);
    return found.at(0);
  });
}

DenseTensor dense_transpose(const DenseTensor& tensor, const Shape& order) {
  Shape shape;
  for (const std::int64_t d : order) shape.push_back(tensor.shape[at(d)]);
  return dense_from(tensor.dtype, shape, [&](const Shape& index) {
    Shape from(index.size());
    for (std::size_t d = 0; d < index.size(); ++d) from[at(order[d])] = index[d];
    return tensor.elements.at(at(flat_of(from, tensor.shape)));
  });
}

DenseTensor dense_slice(const DenseTensor& tensor, std::int64_t dim, std::int64_t begin,
                        std::int64_t count, std::int64_t step) {
  Shape shape = tensor.shape;
  shape[at(dim)] = count;
  return dense_from(tensor.dtype, shape, [&](Shape index) {
    index[at(dim)] = begin + index[at(dim)] * step;
    return tensor.elements.at(at(flat_of(index, tensor.shape)));
  });
}

DenseTensor dense_pad(const DenseTensor& tensor, std::int64_t dim, std::int64_t before,
                      std::int64_t after) {
  Shape shape = tensor.shape;
  shape[at(dim)] += before + after;
  return dense_from(tensor.dtype, shape, [&](Shape index) {
    index[at(dim)] -= before;
    const bool inside = index[at(dim)] >= 0 && index[at(dim)] < tensor.shape[at(dim)];
    return inside ? tensor.elements.at(at(flat_of(index, tensor.shape))) : Origin{};
  });
}

DenseTensor dense_filled(DType dtype, const Shape& shape, std::uint64_t bits) {
  return dense_from(dtype, shape, [&](const Shape& /*index*/) {
    return Origin{Box::kConstant, static_cast<std::int64_t>(bits), {}};
  });
}

DenseTensor dense_then(const DenseTensor& tensor, const Step& step) {
  DenseTensor result = tensor;
  const bool casts = step.kind == Step::Kind::Cast || step.kind == Step::Kind::CastKeepingNan;
  if (casts && step.dtype == tensor.dtype) return result;
  result.dtype = step.dtype;
  for (Origin& origin : result.elements) {
    if (origin.storage != Box::kConstant) {
      origin.program.push_back(step);
      continue;
    }
    Element element{.low = static_cast<std::uint64_t>(origin.index)};
    origin.index = static_cast<std::int64_t>(naive_steps(element, tensor.dtype, {step}).low);
  }
  return result;
}

DenseTensor dense_concat(const std::vector<DenseTensor>& parts, std::int64_t dim) {
  Shape shape = parts.at(0).shape;
  shape[at(dim)] = 0;
  for (const DenseTensor& part : parts) shape[at(dim)] += part.shape[at(dim)];
  return dense_from(parts[0].dtype, shape, [&](Shape index) {
    std::size_t i = 0;
    while (index[at(dim)] >= parts.at(i).shape[at(dim)]) {
      index[at(dim)] -= parts[i].shape[at(dim)];
      ++i;
    }
    return parts[i].elements.at(at(flat_of(index, parts[i].shape)));
  });
}

DenseTensor dense_stack(const std::vector<DenseTensor>& parts, std::int64_t dim) {
  Shape shape = parts.at(0).shape;
  shape.insert(shape.begin() + dim, static_cast<std::int64_t>(parts.size()));
  return dense_from(parts[0].dtype, shape, [&](Shape index) {
    const DenseTensor& part = parts.at(at(index[at(dim)]));
    index.erase(index.begin() + dim);
    return part.elements.at(at(flat_of(index, part.shape)));
  });
}

DenseTensor dense_interleave(const std::vector<DenseTensor>& parts, std::int64_t dim) {
  Shape shape = parts.at(0).shape;
  const auto count = static_cast<std::int64_t>(parts.size());
  shape[at(dim)] *= count;
  return dense_from(parts[0].dtype, shape, [&](Shape index) {
    const DenseTensor& part = parts.at(at(index[at(dim)] % count));
    index[at(dim)] /= count;
    return part.elements.at(at(flat_of(index, part.shape)));
  });
}

DenseTensor dense_boxes(const TensorExpr& expr) {
  DenseTensor tensor{expr.dtype(), {expr.shape().begin(), expr.shape().end()}, {}};
  tensor.elements.resize(at(expr.numel()));
  std::vector<int> visits(tensor.elements.size(), 0);
  std::int64_t last_offset = -1;
  for (const Box& box : expr.boxes()) {
    EXPECT_GT(box.target_offset, last_offset) << "boxes are not sorted";
    last_offset = box.target_offset;
    std::int64_t span = 0;
    for (std::size_t i = box.loops.size(); i > 0; --i) {
      const Loop& loop = box.loops[i - 1];
      EXPECT_GT(loop.count, 1) << "a loop of one turn";
      EXPECT_GT(loop.target_stride, span) << "loops are no digits";
      span += (loop.count - 1) * loop.target_stride;
    }
    for (std::int64_t n = 0; n < box.numel(); ++n) {
      std::int64_t rest = n;
      std::int64_t to = box.target_offset;
      Origin origin{box.source, box.source_offset, box.program ? *box.program : Program{}};
      for (std::size_t i = box.loops.size(); i > 0; --i) {
        const Loop& loop = box.loops[i - 1];
        to += rest % loop.count * loop.target_stride;
        origin.index += rest % loop.count * loop.source_stride;
        rest /= loop.count;
      }
      tensor.elements.at(at(to)) = std::move(origin);
      ++visits[at(to)];
    }
  }
  for (std::size_t i = 0; i < visits.size(); ++i) {
    EXPECT_EQ(visits[i], 1) << "visits of element " << i;
  }
  return tensor;
}

}  // namespace ckfs
