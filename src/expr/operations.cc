// The operations of TensorExpr that move elements. Each brings the boxes into a form in which the
// dimension it works on can be read off the loops (align() in box.h), and then only changes strides
// and offsets. Padding is the concatenation with constant boxes, stacking that of tensors with one
// more dimension, interleaving is stacking seen under another shape: less code than four rules, and
// the same boxes in the end, because neighbours are joined.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "expr/box.h"
#include "expr/shape.h"
#include "expr/steps.h"
#include "expr/tensor_expr.h"
#include "tensor/integers.h"

namespace ckfs {
namespace {

// The bits of a number in an integer dtype; nullopt where it does not hold it. (Doubles up to 2^53
// are whole numbers as they are written; so no more are taken.)
std::optional<std::int64_t> integer_of(DType dtype, double value) {
  constexpr double kMostWhole = 9007199254740992.0;
  const double end = std::ldexp(1, bits_of_numbers(dtype));
  if (value != std::floor(value) || value >= end || value < (is_signed_integer(dtype) ? -end : 0) ||
      std::abs(value) > kMostWhole) {
    return std::nullopt;
  }
  const auto whole = static_cast<std::int64_t>(value);
  const int width = bits(dtype);
  return width == 64 ? whole : whole & ((std::int64_t{1} << width) - 1);
}

// The least k >= 0 with stride * k = target (mod modulus); nullopt where there is none.
std::optional<std::int64_t> solve_congruence(std::int64_t stride, std::int64_t target,
                                             std::int64_t modulus) {
  // Euclid's algorithm, keeping a with a * stride = r (mod modulus).
  std::int64_t r0 = modulus, r1 = stride % modulus;
  std::int64_t a0 = 0, a1 = 1;
  while (r1 != 0) {
    const std::int64_t quotient = r0 / r1;
    r0 = std::exchange(r1, r0 - quotient * r1);
    a0 = std::exchange(a1, a0 - quotient * a1);
  }
  const std::int64_t divisor = r0;
  const std::int64_t wanted = ((target % modulus) + modulus) % modulus;
  if (wanted % divisor != 0) return std::nullopt;
  const std::int64_t period = modulus / divisor;
  __extension__ using Wide = __int128;
  const Wide k = static_cast<Wide>(a0) * (wanted / divisor) % period;
  return static_cast<std::int64_t>(k < 0 ? k + period : k);
}

// The part of `box` whose target indices are `first` modulo `step`. Each loop's turns fall into
// classes that repeat with a period; the last free loop needs no search.
Result<std::vector<Box>> every_nth(const Box& whole, std::int64_t first, std::int64_t step) {
  std::vector<Box> found;
  std::vector<Box> todo{whole};
  while (!todo.empty()) {
    const Box box = std::move(todo.back());
    todo.pop_back();
    std::size_t free_loops = 0;
    std::size_t best = 0;
    std::int64_t best_classes = 0;
    for (std::size_t i = 0; i < box.loops.size(); ++i) {
      const std::int64_t period = step / std::gcd(box.loops[i].target_stride, step);
      if (period == 1) continue;
      const std::int64_t classes = std::min(period, box.loops[i].count);
      if (free_loops++ == 0 || classes < best_classes) {
        best = i;
        best_classes = classes;
      }
    }
    if (free_loops == 0) {
      if ((box.target_offset - first) % step == 0) found.push_back(box);
      continue;
    }
    const Loop& loop = box.loops[best];
    const std::int64_t period = step / std::gcd(loop.target_stride, step);
    const auto turns_from = [&](std::int64_t k) {
      return restrict_loop(box, best, k, (loop.count - k + period - 1) / period, period);
    };
    if (free_loops == 1) {
      const auto k = solve_congruence(loop.target_stride, first - box.target_offset, step);
      if (k && *k < loop.count) todo.push_back(turns_from(*k));
      continue;
    }
    if (best_classes + static_cast<std::int64_t>(todo.size() + found.size()) >
        static_cast<std::int64_t>(kMaxBoxes)) {
      return fail(ErrorCode::Unsupported, "slice with step {}: more boxes than {}", step,
                  kMaxBoxes);
    }
    for (std::int64_t k = 0; k < best_classes; ++k) todo.push_back(turns_from(k));
  }
  return found;
}

}  // namespace

Result<TensorExpr> TensorExpr::transpose(std::span<const std::int64_t> permutation) const {
  const std::size_t rank = shape_.size();
  std::vector<bool> seen(rank, false);
  bool valid = permutation.size() == rank;
  for (const std::int64_t d : permutation) {
    valid = valid && d >= 0 && d < static_cast<std::int64_t>(rank) &&
            !seen[static_cast<std::size_t>(d)];
    if (valid) seen[static_cast<std::size_t>(d)] = true;
  }
  if (!valid) {
    return fail(ErrorCode::InvalidArgument, "transpose {} of shape {}: not a permutation",
                shape_text(permutation), shape_text(shape_));
  }
  if (std::ranges::is_sorted(permutation)) return *this;
  CKFS_TRY_VOID(check_movable());

  std::vector<std::int64_t> shape;
  for (const std::int64_t d : permutation) shape.push_back(shape_[static_cast<std::size_t>(d)]);
  if (numel() == 0) return make(dtype_, std::move(shape), {});

  const std::vector<std::int64_t> strides = row_major_strides(shape_);
  const std::vector<std::int64_t> turned = row_major_strides(shape);
  std::vector<std::int64_t> new_strides(rank);  // of the old dimensions
  for (std::size_t d = 0; d < rank; ++d) {
    new_strides[static_cast<std::size_t>(permutation[d])] = turned[d];
  }
  CKFS_TRY(std::vector<Box> boxes, align(boxes(), strides));
  for (Box& box : boxes) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < rank; ++d) {
      offset += box.target_offset / strides[d] % shape_[d] * new_strides[d];
    }
    box.target_offset = offset;
    for (Loop& loop : box.loops) {
      // Aligned: the outermost dimension whose stride divides the loop's holds the whole loop. (Of
      // dimensions with equal strides all but the first have one element.)
      std::size_t d = 0;
      while (loop.target_stride % strides[d] != 0) ++d;
      loop.target_stride = loop.target_stride / strides[d] * new_strides[d];
    }
    box.loops = normalize(std::move(box.loops));
  }
  return make(dtype_, std::move(shape), std::move(boxes));
}

Result<TensorExpr> TensorExpr::slice(std::int64_t dim, std::int64_t begin, std::int64_t count,
                                     std::int64_t step) const {
  CKFS_TRY_VOID(check_dim(dim));
  const auto d = static_cast<std::size_t>(dim);
  // The last element wanted is begin + (count - 1) * step; compared without computing it.
  if (begin < 0 || count < 0 || step < 1 || begin > shape_[d] ||
      (count > 0 && (begin == shape_[d] || (count - 1) > (shape_[d] - 1 - begin) / step))) {
    return fail(ErrorCode::InvalidArgument,
                "slice of dimension {}: {} elements from {} by step {}: out of range (0 to {})",
                dim, count, begin, step, shape_[d]);
  }
  if (count == shape_[d]) return *this;
  CKFS_TRY_VOID(check_movable());
  std::vector<std::int64_t> shape(shape_.begin(), shape_.end());
  shape[d] = count;
  if (count == 0 || numel() == 0) return make(dtype_, std::move(shape), {});
  if (count == 1) step = 1;

  const Around old = around(shape_, dim);
  const std::int64_t blocks[] = {old.block, old.inner};
  // Of an outermost dimension the slice is a range of the tensor: boxes that do not meet it cost
  // nothing, and a stack of 15,000 matrices is taken apart in chunks of one.
  std::vector<Box> candidates =
      old.block == numel()
          ? this->boxes(begin * old.inner, (begin + (count - 1) * step + 1) * old.inner)
          : this->boxes();
  CKFS_TRY(const std::vector<Box> aligned, align(std::move(candidates), blocks));
  std::vector<Box> boxes;
  for (const Box& box : aligned) {
    // The loops of the dimension alone, as a box over its indices.
    Box line{box.source, box.target_offset / old.inner % old.extent, box.source_offset, {}, {}};
    std::vector<Loop> others;
    for (Loop loop : box.loops) {
      if (loop.target_stride % old.block == 0) {
        loop.target_stride = loop.target_stride / old.block * (count * old.inner);
        others.push_back(loop);
      } else if (loop.target_stride % old.inner == 0) {
        loop.target_stride /= old.inner;
        line.loops.push_back(loop);
      } else {
        others.push_back(loop);
      }
    }
    std::vector<Box> pieces = clip(line, begin, begin + (count - 1) * step + 1);
    if (step > 1) {
      std::vector<Box> selected;
      for (const Box& piece : pieces) {
        CKFS_TRY(std::vector<Box> some, every_nth(piece, begin, step));
        std::ranges::move(some, std::back_inserter(selected));
      }
      pieces = std::move(selected);
    }
    for (Box& piece : pieces) {
      for (Loop& loop : piece.loops) loop.target_stride = loop.target_stride / step * old.inner;
      piece.loops.insert(piece.loops.end(), others.begin(), others.end());
      piece.loops = normalize(std::move(piece.loops));
      const std::int64_t index = (piece.target_offset - begin) / step;
      piece.target_offset = (box.target_offset / old.block * count + index) * old.inner +
                            box.target_offset % old.inner;
      piece.program = box.program;
      boxes.push_back(std::move(piece));
    }
    if (boxes.size() > kMaxBoxes) {
      return fail(ErrorCode::Unsupported, "slice of dimension {}: more boxes than {}", dim,
                  kMaxBoxes);
    }
  }
  return make(dtype_, std::move(shape), std::move(boxes));
}

Result<TensorExpr> TensorExpr::constant(DType dtype, std::span<const std::int64_t> shape,
                                        std::int64_t bits) {
  CKFS_TRY(const std::int64_t numel, check_shape(dtype, shape));
  std::vector<Box> boxes;
  if (numel > 0) boxes.push_back({Box::kConstant, 0, bits, normalize({{numel, 1, 0}}), nullptr});
  return make(dtype, {shape.begin(), shape.end()}, std::move(boxes));
}

Result<TensorExpr> TensorExpr::zeros(DType dtype, std::span<const std::int64_t> shape) {
  return constant(dtype, shape, 0);
}

Result<TensorExpr> TensorExpr::filled(DType dtype, std::span<const std::int64_t> shape,
                                      double value) {
  const auto does_not_hold = [&] {
    return fail(ErrorCode::InvalidArgument, "fill: {} does not hold {}", name(dtype), value);
  };
  if (is_integer(dtype)) {
    const std::optional<std::int64_t> bits = integer_of(dtype, value);
    if (!bits) return does_not_hold();
    return constant(dtype, shape, *bits);
  }
  if (!is_castable_float(dtype)) {
    return fail(ErrorCode::Unsupported,
                "fill: {} is neither an integer nor one of F64, F32, F16 and BF16", name(dtype));
  }
  const auto exact = std::bit_cast<std::int64_t>(value);
  const std::int64_t rounded = cast_constant(DType::F64, exact, dtype);
  const std::int64_t back = cast_constant(dtype, rounded, DType::F64);
  if (!std::isfinite(std::bit_cast<double>(back))) return does_not_hold();
  return constant(dtype, shape, rounded);
}

Result<TensorExpr> TensorExpr::pad(std::int64_t dim, std::int64_t before,
                                   std::int64_t after) const {
  CKFS_TRY_VOID(check_dim(dim));
  if (before < 0 || after < 0) {
    return fail(ErrorCode::InvalidArgument, "pad of dimension {}: {} before, {} after (limit 0)",
                dim, before, after);
  }
  std::vector<TensorExpr> parts;
  const auto add_zeros = [&](std::int64_t count) -> Result<void> {
    if (count == 0) return {};
    std::vector<std::int64_t> shape(shape_.begin(), shape_.end());
    shape[static_cast<std::size_t>(dim)] = count;
    CKFS_TRY(TensorExpr part, zeros(dtype_, shape));
    parts.push_back(std::move(part));
    return {};
  };
  CKFS_TRY_VOID(add_zeros(before));
  parts.push_back(*this);
  CKFS_TRY_VOID(add_zeros(after));
  return concat(parts, dim);
}

Result<TensorExpr> TensorExpr::concat(std::span<const TensorExpr> parts, std::int64_t dim) {
  if (parts.empty()) return fail(ErrorCode::InvalidArgument, "concat of no tensors");
  const TensorExpr& head = parts.front();
  CKFS_TRY_VOID(head.check_dim(dim));
  const auto d = static_cast<std::size_t>(dim);
  std::vector<std::int64_t> shape(head.shape_.begin(), head.shape_.end());
  shape[d] = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const TensorExpr& part = parts[i];
    if (part.dtype_ != head.dtype_) {
      return fail(ErrorCode::InvalidArgument, "concat: part {} is {}, part 0 is {}: cast first", i,
                  name(part.dtype_), name(head.dtype_));
    }
    bool fits = part.shape_.size() == shape.size();
    for (std::size_t k = 0; fits && k < shape.size(); ++k) {
      fits = k == d || part.shape_[k] == head.shape_[k];
    }
    if (!fits) {
      return fail(ErrorCode::InvalidArgument,
                  "concat along dimension {}: part {} has shape {}, part 0 has {}", dim, i,
                  shape_text(part.shape_), shape_text(head.shape_));
    }
    const std::optional<std::int64_t> sum = checked_add(shape[d], part.shape_[d]);
    if (!sum) return fail(ErrorCode::InvalidArgument, "concat along dimension {}: overflow", dim);
    shape[d] = *sum;
  }
  if (parts.size() == 1) return head;
  CKFS_TRY_VOID(head.check_movable());
  CKFS_TRY(const std::int64_t numel, check_shape(head.dtype_, shape));
  if (numel == 0) return make(head.dtype_, std::move(shape), {});

  const std::int64_t block = around(shape, dim).block;
  std::vector<Box> boxes;
  std::int64_t begin = 0;  // of the part, within a block of the result
  for (const TensorExpr& part : parts) {
    const std::int64_t part_block = around(part.shape_, dim).block;
    if (part_block == 0) continue;
    CKFS_TRY(std::vector<Box> aligned, align(part.boxes(), std::span(&part_block, 1)));
    if (boxes.size() + aligned.size() > kMaxBoxes) {
      return fail(ErrorCode::Unsupported, "concat: more boxes than {}", kMaxBoxes);
    }
    for (Box& box : aligned) {
      box.target_offset =
          box.target_offset / part_block * block + begin + box.target_offset % part_block;
      for (Loop& loop : box.loops) {
        if (loop.target_stride % part_block == 0) {
          loop.target_stride = loop.target_stride / part_block * block;
        }
      }
      box.loops = normalize(std::move(box.loops));
      boxes.push_back(std::move(box));
    }
    begin += part_block;
  }
  return make(head.dtype_, std::move(shape), std::move(boxes));
}

Result<TensorExpr> TensorExpr::stack(std::span<const TensorExpr> parts, std::int64_t dim) {
  if (parts.empty()) return fail(ErrorCode::InvalidArgument, "stack of no tensors");
  const auto rank = static_cast<std::int64_t>(parts.front().shape_.size());
  if (dim < 0 || dim > rank) {
    return fail(ErrorCode::InvalidArgument, "stack: new dimension {}: out of range (0 to {})", dim,
                rank);
  }
  std::vector<TensorExpr> rows;
  rows.reserve(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const TensorExpr& part = parts[i];
    if (!std::ranges::equal(part.shape_, parts.front().shape_)) {
      return fail(ErrorCode::InvalidArgument, "stack: part {} has shape {}, part 0 has {}", i,
                  shape_text(part.shape_), shape_text(parts.front().shape_));
    }
    std::vector<std::int64_t> shape(part.shape_.begin(), part.shape_.end());
    shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(dim), 1);
    CKFS_TRY(TensorExpr row, part.reshape(shape));
    rows.push_back(std::move(row));
  }
  return concat(rows, dim);
}

Result<TensorExpr> TensorExpr::interleave(std::span<const TensorExpr> parts, std::int64_t dim) {
  if (parts.empty()) return fail(ErrorCode::InvalidArgument, "interleave of no tensors");
  CKFS_TRY_VOID(parts.front().check_dim(dim));
  CKFS_TRY(const TensorExpr stacked, stack(parts, dim + 1));
  std::vector<std::int64_t> shape(parts.front().shape_.begin(), parts.front().shape_.end());
  const std::optional<std::int64_t> extent =
      checked_mul(shape[static_cast<std::size_t>(dim)], static_cast<std::int64_t>(parts.size()));
  if (!extent) return fail(ErrorCode::InvalidArgument, "interleave: overflow");
  shape[static_cast<std::size_t>(dim)] = *extent;
  return stacked.reshape(shape);
}

Result<std::vector<TensorExpr>> TensorExpr::split(std::int64_t dim, std::int64_t parts) const {
  CKFS_TRY_VOID(check_dim(dim));
  const std::int64_t extent = shape_[static_cast<std::size_t>(dim)];
  if (parts < 1 || extent % parts != 0) {
    return fail(ErrorCode::InvalidArgument, "split of dimension {}: {} elements in {} equal parts",
                dim, extent, parts);
  }
  if (parts > static_cast<std::int64_t>(kMaxBoxes)) {
    return fail(ErrorCode::Unsupported, "split of dimension {}: {} parts (limit {})", dim, parts,
                kMaxBoxes);
  }
  const std::int64_t count = extent / parts;
  std::vector<TensorExpr> slices;
  slices.reserve(static_cast<std::size_t>(parts));
  for (std::int64_t i = 0; i < parts; ++i) {
    CKFS_TRY(TensorExpr part, slice(dim, i * count, count));
    slices.push_back(std::move(part));
  }
  return slices;
}

}  // namespace ckfs
