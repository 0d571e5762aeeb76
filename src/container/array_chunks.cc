#include "container/array_chunks.h"

#include <algorithm>

#include "base/error.h"
#include "expr/box.h"
#include "expr/shape.h"

namespace ckfs {
namespace {

/// `order` without what chunks cannot show: dimensions of one element may lie anywhere. Empty: as
/// they are.
std::vector<std::int64_t> stored_order(std::span<const std::int64_t> order,
                                       std::span<const std::int64_t> chunk, ChunkOrders orders) {
  std::vector<std::int64_t> seen;
  for (const std::int64_t d : order) {
    if (chunk[static_cast<std::size_t>(d)] > 1) seen.push_back(d);
  }
  if (std::ranges::is_sorted(seen)) return {};
  if (orders == ChunkOrders::Any) return {order.begin(), order.end()};
  if (!std::ranges::is_sorted(seen, std::ranges::greater{})) return {};
  std::vector<std::int64_t> reverse;
  for (std::size_t d = order.size(); d-- > 0;) reverse.push_back(static_cast<std::int64_t>(d));
  return reverse;
}

/// Whether the box's loops walk along dimensions of `strides` without a carry: align() leaves it.
bool is_aligned(const Box& box, std::span<const std::int64_t> strides) {
  return std::ranges::all_of(strides, [&](std::int64_t block) {
    std::int64_t reach = box.target_offset % block;
    for (const Loop& loop : box.loops) {
      if (loop.target_stride % block != 0) reach += (loop.count - 1) * loop.target_stride;
    }
    return reach < block;
  });
}

}  // namespace

ArrayChunks::ArrayChunks(DType dtype, std::span<const std::int64_t> shape,
                         std::span<const std::int64_t> split, const ArraySource& source,
                         ChunkOrders orders)
    : dtype_(dtype),
      shape_(shape.begin(), shape.end()),
      chunk_(choose_chunk(shape, bytes_of(dtype, 1), split, source)) {
  bytes_ = bytes_of(dtype, 1);
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    grid_.push_back(shape_[d] / chunk_[d]);
    count_ *= static_cast<std::uint64_t>(grid_[d]);
    bytes_ *= static_cast<std::uint64_t>(chunk_[d]);
  }
  if (count_ == 0) return;
  order_ = stored_order(source.order, chunk_, orders);
  // First from source tensor to source tensor, then within one.
  std::vector<Digit> within;
  for (const std::int64_t dim : source.order) {
    const auto d = static_cast<std::size_t>(dim);
    const bool one = source.cell[d] == shape_[d];
    const bool cut = !one && source.cell[d] % chunk_[d] == 0;
    const std::int64_t inside = one ? grid_[d] : cut ? source.cell[d] / chunk_[d] : 1;
    if (inside > 1) within.push_back({d, 1, inside});
  }
  for (const std::int64_t dim : source.cell_order) {
    const auto d = static_cast<std::size_t>(dim);
    const std::int64_t step =
        source.cell[d] % chunk_[d] == 0 ? source.cell[d] / chunk_[d] : std::int64_t{1};
    digits_.push_back({d, step, grid_[d] / step});
  }
  digits_.insert(digits_.end(), within.begin(), within.end());
}

std::vector<std::int64_t> ArrayChunks::index(std::uint64_t number) const {
  CKFS_CHECK(number < count_);
  std::vector<std::int64_t> index(grid_.size(), 0);
  auto rest = static_cast<std::int64_t>(number);
  for (std::size_t i = digits_.size(); i-- > 0;) {
    const Digit& digit = digits_[i];
    index[digit.dim] += rest % digit.count * digit.step;
    rest /= digit.count;
  }
  return index;
}

std::uint64_t ArrayChunks::number(std::span<const std::int64_t> index) const {
  std::int64_t number = 0;
  for (const Digit& digit : digits_) {
    number = number * digit.count + index[digit.dim] / digit.step % digit.count;
  }
  return static_cast<std::uint64_t>(number);
}

TensorExpr ArrayChunks::expr(const TensorExpr& tensor, std::uint64_t number) const {
  TensorExpr part = tensor;
  const std::vector<std::int64_t> at = index(number);
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    if (grid_[d] == 1) continue;
    auto slice = part.slice(static_cast<std::int64_t>(d), at[d] * chunk_[d], chunk_[d]);
    CKFS_CHECK(slice);
    part = *std::move(slice);
  }
  if (order_.empty()) return part;
  auto turned = part.transpose(order_);
  CKFS_CHECK(turned);
  return *std::move(turned);
}

Result<void> check_sliceable(const TensorExpr& expr) {
  if (expr.whole() || expr.numel() == 0) return {};
  const std::vector<std::int64_t> strides = row_major_strides(expr.shape());
  if (std::ranges::all_of(expr.box_list(),
                          [&](const Box& box) { return is_aligned(box, strides); })) {
    return {};
  }
  CKFS_TRY_VOID(align(expr.box_list(), strides));
  return {};
}

}  // namespace ckfs
