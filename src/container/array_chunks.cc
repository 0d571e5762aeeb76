#include "container/array_chunks.h"

#include <algorithm>
#include <limits>

#include "base/byte_source.h"
#include "base/checked.h"
#include "base/error.h"
#include "expr/box.h"
#include "expr/shape.h"

namespace ckfs {
namespace {

/// `order` as far as chunks can show it: dimensions of one element may lie anywhere. Empty: as they
/// are.
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

/// Source bytes between two pieces of a chunk; 0: it is one piece.
std::int64_t gap_of(std::span<const std::int64_t> chunk, const ArraySource& source) {
  std::int64_t piece = 1;
  for (std::size_t i = source.order.size(); i-- > 0;) {
    const auto d = static_cast<std::size_t>(source.order[i]);
    piece *= std::min(chunk[d], source.cell[d]);
    if (chunk[d] >= source.cell[d]) continue;
    const auto bits =
        checked_mul<std::int64_t>(piece * (source.cell[d] / chunk[d] - 1), source.bits);
    return bits.value_or(std::numeric_limits<std::int64_t>::max()) / 8;
  }
  return 0;
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

/// Whether a chunk, wherever it lies, is cut out of the boxes in no more than kMaxBoxes pieces: an
/// interval cuts each loop that stays within one dimension into a first part, whole turns and a
/// last part.
Result<void> check_pieces(std::span<const Box> boxes, std::span<const std::int64_t> strides) {
  std::size_t pieces = 0;
  for (const Box& box : boxes) {
    std::size_t most = 1;
    for (std::size_t d = 0; d < strides.size(); ++d) {
      const auto loops = std::ranges::count_if(box.loops, [&](const Loop& loop) {
        return loop.target_stride >= strides[d] && (d == 0 || loop.target_stride < strides[d - 1]);
      });
      if (loops > 1) most = std::min(most * static_cast<std::size_t>(2 * loops - 1), kMaxBoxes);
    }
    pieces += most;
  }
  if (pieces <= kMaxBoxes) return {};
  return fail(ErrorCode::Unsupported, "{} boxes, whose chunks are up to {} pieces (limit {})",
              boxes.size(), pieces, kMaxBoxes);
}

}  // namespace

ArrayChunks::ArrayChunks(DType dtype, std::span<const std::int64_t> shape,
                         std::span<const std::int64_t> split, const ArraySource& source,
                         ChunkOrders orders, std::uint64_t most)
    : dtype_(dtype), shape_(shape.begin(), shape.end()), bytes_(bytes_of(dtype, 1)) {
  ChosenChunk chosen = choose_chunk(shape, bytes_, split, source, most);
  chunk_ = std::move(chosen.shape);
  steps_ = chosen.steps;
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
  within_ = digits_.size();
  digits_.insert(digits_.end(), within.begin(), within.end());
  if (gap_of(chunk_, source) > static_cast<std::int64_t>(kMostBetween)) return;
  for (const Digit& digit : within) together_ *= static_cast<std::uint64_t>(digit.count);
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

Result<TensorExpr> ArrayChunks::expr(const TensorExpr& tensor, std::uint64_t number,
                                     std::uint64_t count) const {
  CKFS_CHECK(count == 1 || (count == together_ && number % count == 0));
  const std::span<const Digit> cuts =
      std::span(digits_).subspan(count == 1 ? digits_.size() : within_);
  std::vector<std::int64_t> extents = chunk_;
  for (const Digit& cut : cuts) extents[cut.dim] *= cut.count;
  TensorExpr part = tensor;
  const std::vector<std::int64_t> at = index(number);
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    if (extents[d] == shape_[d]) continue;
    CKFS_TRY(part, part.slice(static_cast<std::int64_t>(d), at[d] * chunk_[d], extents[d]));
  }
  // A dimension that is cut becomes two: which chunk, and where in it.
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> inner;  // by dimension: where in `shape`
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    if (extents[d] != chunk_[d]) shape.push_back(extents[d] / chunk_[d]);
    inner.push_back(static_cast<std::int64_t>(shape.size()));
    shape.push_back(chunk_[d]);
  }
  std::vector<std::int64_t> stored;
  for (const Digit& cut : cuts) stored.push_back(inner[cut.dim] - 1);
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    stored.push_back(inner[order_.empty() ? d : static_cast<std::size_t>(order_[d])]);
  }
  CKFS_TRY(part, part.reshape(shape));
  return part.transpose(stored);
}

Result<void> check_sliceable(const TensorExpr& expr) {
  if (expr.whole() || expr.numel() == 0) return {};
  const std::vector<std::int64_t> strides = row_major_strides(expr.shape());
  const std::span<const Box> boxes = expr.box_list();
  if (boxes.size() > kMaxBoxes) {
    return fail(ErrorCode::Unsupported, "{} boxes (limit {})", boxes.size(), kMaxBoxes);
  }
  if (std::ranges::all_of(boxes, [&](const Box& box) { return is_aligned(box, strides); })) {
    return check_pieces(boxes, strides);
  }
  CKFS_TRY(const std::vector<Box> aligned, align({boxes.begin(), boxes.end()}, strides));
  return check_pieces(aligned, strides);
}

}  // namespace ckfs
