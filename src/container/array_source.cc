// Boxes are loops over flat indices; here each loop is read as a walk along dimensions. Where a box
// is not one of the shape (its loops carry from one dimension into the next), the answer is a
// guess. Chunks chosen by it are right all the same: their bytes are cut out of the expression.
#include "container/array_source.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "base/rounding.h"
#include "expr/box.h"
#include "expr/shape.h"

namespace ckfs {
namespace {

using Indices = std::vector<std::int64_t>;

/// Where a box's first element lies, about: the file, and the byte in it.
std::pair<FileId, std::uint64_t> position(const Catalog& catalog, const Box& box) {
  const Storage& storage = catalog.storage(box.source);
  if (storage.extents.empty() || storage.numel == 0) return {0, 0};
  __extension__ using Wide = unsigned __int128;
  const Wide inside = static_cast<Wide>(box.source_offset) * storage.nbytes() /
                      static_cast<std::uint64_t>(storage.numel);
  const FileRange first = catalog.place(storage.extents[0]);
  return {first.file, first.offset + static_cast<std::uint64_t>(inside)};
}

class ArraySourceReader {
 public:
  ArraySourceReader(const Catalog& catalog, const TensorExpr& expr)
      : catalog_(catalog),
        expr_(expr),
        shape_(expr.shape()),
        strides_(row_major_strides(expr.shape())) {}

  ArraySource source() const {
    ArraySource source;
    const std::vector<Box> boxes = expr_.boxes();
    source.cell = cells(boxes);
    Indices reach(shape_.size(), 0);  // elements of the source that a step of a dimension moves
    source.granule.assign(shape_.size(), 1);
    for (const Box& box : boxes) {
      if (box.is_constant()) continue;
      note_strides(box, reach, source.granule);
      const Storage& storage = catalog_.storage(box.source);
      source.bits = static_cast<std::int64_t>(
          storage.nbytes() / ceil_div<std::uint64_t>(static_cast<std::uint64_t>(storage.numel), 8));
    }
    source.order = by(reach, [&](std::size_t d) {
      return reach[d] == 0 ? std::numeric_limits<std::int64_t>::max() : reach[d];
    });
    source.cell_order = order_of_cells(source.cell);
    return source;
  }

 private:
  static Indices by(const Indices& all, auto key) {
    Indices order(all.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [&](std::int64_t d) { return key(static_cast<std::size_t>(d)); });
    return order;
  }

  /// The grid on which source tensors begin. The end of one is not a border by itself: padding may
  /// follow.
  Indices cells(std::span<const Box> boxes) const {
    std::unordered_map<StorageId, Indices> begins;
    for (const Box& box : boxes) {
      if (box.is_constant()) continue;
      Indices begin(shape_.size());
      for (std::size_t d = 0; d < shape_.size(); ++d) {
        begin[d] = box.target_offset / strides_[d] % shape_[d];
      }
      const auto [known, is_new] = begins.emplace(box.source, begin);
      if (is_new) continue;
      for (std::size_t d = 0; d < shape_.size(); ++d) {
        known->second[d] = std::min(known->second[d], begin[d]);
      }
    }
    Indices cell(shape_.begin(), shape_.end());
    Indices first = cell;
    for (const auto& [storage, begin] : begins) {
      for (std::size_t d = 0; d < cell.size(); ++d) first[d] = std::min(first[d], begin[d]);
    }
    for (const auto& [storage, begin] : begins) {
      for (std::size_t d = 0; d < cell.size(); ++d) {
        if (begin[d] > first[d]) cell[d] = std::gcd(cell[d], begin[d]);
      }
    }
    for (const Box& box : boxes) cut_at_chunks(box, cell);
    return cell;
  }

  /// Chunks of a source array that are decoded as a whole are cells, as tensors of their own would
  /// be: all of one storage, one after another.
  void cut_at_chunks(const Box& box, Indices& cell) const {
    if (box.is_constant()) return;
    const Storage& storage = catalog_.storage(box.source);
    if (storage.extents.size() < 2 || !is_chunk(storage.extents[0].file)) return;
    const auto each = storage.numel / static_cast<std::int64_t>(storage.extents.size());
    for (std::size_t d = 0; d < shape_.size(); ++d) {
      // How far a step of the dimension goes within a chunk: until it is in the next.
      for (const Loop& loop : box.loops) {
        const bool within = loop.source_stride > 0 && loop.source_stride < each;
        if (loop.target_stride != strides_[d] || !within) continue;
        const std::int64_t steps = std::max<std::int64_t>(1, each / loop.source_stride);
        cell[d] = std::gcd(cell[d], std::min(steps, loop.count));
      }
      // Dimensions that are one loop, as far as they are in a chunk together.
      for (const Loop& loop : box.loops) {
        if (loop.target_stride >= strides_[d] || loop.source_stride <= 0) continue;
        const std::int64_t step = strides_[d] / loop.target_stride;
        if (loop.count <= step || strides_[d] % loop.target_stride != 0) continue;
        const std::int64_t along = each / loop.source_stride / step;
        cell[d] = std::gcd(cell[d], std::max<std::int64_t>(1, along));
      }
    }
  }

  void note_strides(const Box& box, Indices& reach, Indices& granules) const {
    const Granule granule = catalog_.storage(box.source).encoding->granule();
    for (const Loop& loop : box.loops) {
      const std::int64_t end = loop.count * loop.target_stride;
      for (std::size_t d = 0; d < shape_.size(); ++d) {
        const bool walks =
            shape_[d] > 1 && loop.target_stride < strides_[d] * shape_[d] && end > strides_[d];
        if (!walks) continue;
        const std::int64_t turns = std::max<std::int64_t>(1, strides_[d] / loop.target_stride);
        const std::int64_t step = std::abs(loop.source_stride) * turns;
        reach[d] = std::max(reach[d], step);
        if (step == granule.stride) granules[d] = std::lcm(granules[d], granule.elements);
      }
    }
  }

  /// Dimensions with several cells, by how far the second cell lies from the first.
  Indices order_of_cells(const Indices& cell) const {
    Indices order;
    std::vector<std::pair<FileId, std::uint64_t>> places(shape_.size());
    for (std::size_t d = 0; d < shape_.size(); ++d) {
      if (cell[d] == shape_[d]) continue;
      order.push_back(static_cast<std::int64_t>(d));
      const std::int64_t at = cell[d] * strides_[d];
      const std::vector<Box> boxes = expr_.boxes(at, at + 1);
      if (!boxes.empty() && !boxes[0].is_constant()) places[d] = position(catalog_, boxes[0]);
    }
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [&](std::int64_t d) { return places[static_cast<std::size_t>(d)]; });
    return order;
  }

  const Catalog& catalog_;
  const TensorExpr& expr_;
  const std::span<const std::int64_t> shape_;
  const Indices strides_;
};

}  // namespace

ArraySource array_source(const Catalog& catalog, const TensorExpr& expr) {
  return ArraySourceReader(catalog, expr).source();
}

}  // namespace ckfs
