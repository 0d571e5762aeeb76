// Every operation gives the list of boxes of its result at once; there is no tree of operations to
// simplify or to interpret later. A tree would be shorter to build, but each reader of it (planner,
// evaluator, exactness, cost model) would have to know every operation.
//
// Most tensors of most views are whole storages with at most one cast, and there are 92,000 of
// them in a large checkpoint: these keep no list, no shape and no program of their own.
#include "expr/tensor_expr.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include "base/checked.h"
#include "expr/box.h"

namespace ckfs {
namespace {

// Far more than any file system holds, and so small that the sum of an index and a block, and the
// bits of a tensor of bytes, are still int64.
constexpr std::int64_t kMaxNumel = std::int64_t{1} << 59;

std::shared_ptr<const Program> cast_program(DType dtype) {
  // Shared by all tensors of all views; immutable, so the one exception to "no globals" is
  // harmless.
  static const auto kPrograms = [] {
    std::array<std::shared_ptr<const Program>, kDTypeCount> programs;
    for (std::size_t i = 0; i < programs.size(); ++i) {
      programs[i] = std::make_shared<const Program>(
          Program{Step{Step::Kind::Cast, static_cast<DType>(i), 0}});
    }
    return programs;
  }();
  return kPrograms[static_cast<std::size_t>(dtype)];
}

std::shared_ptr<const Program> extended(const std::shared_ptr<const Program>& program,
                                        const Step& step) {
  if (!program && step.kind == Step::Kind::Cast) return cast_program(step.dtype);
  Program longer = program ? *program : Program{};
  longer.push_back(step);
  return std::make_shared<const Program>(std::move(longer));
}

std::string text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Requires: the product is that of a part of a checked shape.
std::int64_t product(std::span<const std::int64_t> shape) {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

// Elements that one step along each dimension of a shape without zeros moves.
std::vector<std::int64_t> row_major_strides(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d > 1; --d) strides[d - 2] = strides[d - 1] * shape[d - 1];
  return strides;
}

Result<std::int64_t> check_shape(DType dtype, std::span<const std::int64_t> shape) {
  const std::optional<std::int64_t> numel = checked_numel(shape);
  if (!numel || *numel > kMaxNumel) {
    return fail(ErrorCode::InvalidArgument, "shape {}: negative or more than {} elements",
                text(shape), kMaxNumel);
  }
  if (!nbytes(dtype, *numel)) {
    return fail(ErrorCode::InvalidArgument, "shape {}: {} elements of {} end within a byte",
                text(shape), *numel, name(dtype));
  }
  return *numel;
}

// A dimension seen as the middle one of three: what lies before it and after it.
struct Around {
  std::int64_t extent = 0;
  std::int64_t inner = 0;  // elements that one step of the dimension moves
  std::int64_t block = 0;  // elements that one step of the dimension before it moves
};

Around around(std::span<const std::int64_t> shape, std::int64_t dim) {
  const auto d = static_cast<std::size_t>(dim);
  const std::int64_t inner = product(shape.subspan(d + 1));
  return {shape[d], inner, shape[d] * inner};
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

// Where padding would not stay zero bits.
bool keeps_zero(const Step& step) {
  switch (step.kind) {
    case Step::Kind::Multiply:
      return step.operand >= 0 && step.operand <= std::numeric_limits<float>::max();
    case Step::Kind::Add:
      return step.operand == 0;
    case Step::Kind::Cast:
    case Step::Kind::FlushSubnormals:
    case Step::Kind::CanonicalNan:
      return true;
  }
  return false;
}

}  // namespace

TensorExpr TensorExpr::make(DType dtype, std::vector<std::int64_t> shape, std::vector<Box> boxes) {
  auto body = std::make_shared<Body>();
  body->shape = std::move(shape);
  body->boxes = std::make_shared<const std::vector<Box>>(join(std::move(boxes)));
  TensorExpr expr;
  expr.dtype_ = dtype;
  expr.shape_ = body->shape;
  expr.body_ = std::move(body);
  return expr;
}

TensorExpr TensorExpr::stored(const Catalog& catalog, TensorId tensor) {
  const StoredTensor& stored = catalog.tensor(tensor);
  const DType dtype = catalog.value_dtype(tensor);
  TensorExpr expr;
  expr.dtype_ = dtype;
  expr.shape_ = stored.shape;
  expr.storage_ = stored.storage;
  if (stored.boxes.empty()) return expr;

  const std::vector<std::int64_t> strides = row_major_strides(stored.shape);
  std::vector<Box> boxes;
  boxes.reserve(stored.boxes.size());
  for (const StorageBox& part : stored.boxes) {
    CKFS_CHECK(catalog.storage(part.storage).value_dtype() == dtype);
    Box box{part.storage, 0, part.offset, {}, nullptr};
    bool empty = false;
    for (std::size_t d = 0; d < strides.size(); ++d) {
      box.target_offset += part.begin[d] * strides[d];
      box.loops.push_back({part.count[d], strides[d], part.stride[d]});
      empty = empty || part.count[d] == 0;
    }
    if (empty) continue;
    box.loops = normalize(std::move(box.loops));
    boxes.push_back(std::move(box));
  }
  return make(dtype, {stored.shape.begin(), stored.shape.end()}, std::move(boxes));
}

std::int64_t TensorExpr::numel() const {
  const std::optional<std::int64_t> numel = checked_numel(shape_);
  CKFS_CHECK(numel.has_value());
  return *numel;
}

std::uint64_t TensorExpr::nbytes() const {
  const std::optional<std::uint64_t> bytes = ckfs::nbytes(dtype_, numel());
  CKFS_CHECK(bytes.has_value());
  return *bytes;
}

std::vector<Box> TensorExpr::boxes() const {
  const std::optional<Whole> storage = whole();
  if (!storage) return *body_->boxes;
  const std::int64_t count = numel();
  if (count == 0) return {};
  Box box{storage->storage, 0, 0, {}, storage->program};
  if (count > 1) box.loops.push_back({count, 1, 1});
  return {box};
}

std::span<const Box> TensorExpr::box_list() const {
  if (!body_ || !body_->boxes) return {};
  return *body_->boxes;
}

std::optional<TensorExpr::Whole> TensorExpr::whole() const {
  if (storage_ == Box::kConstant) return std::nullopt;
  if (body_) return Whole{storage_, body_->program};
  if (cast_ == kNoCast) return Whole{storage_, nullptr};
  return Whole{storage_, cast_program(static_cast<DType>(cast_))};
}

Result<void> TensorExpr::check_dim(std::int64_t dim) const {
  if (dim >= 0 && dim < static_cast<std::int64_t>(shape_.size())) return {};
  return fail(ErrorCode::InvalidArgument, "dimension {} of shape {}: out of range (0 to {})", dim,
              text(shape_), static_cast<std::int64_t>(shape_.size()) - 1);
}

Result<void> TensorExpr::check_movable() const {
  if (bits(dtype_) % 8 == 0) return {};
  return fail(ErrorCode::Unsupported,
              "{}: elements of {} bits are only moved as a whole tensor (reshape)", name(dtype_),
              bits(dtype_));
}

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
                text(permutation), text(shape_));
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

Result<TensorExpr> TensorExpr::reshape(std::span<const std::int64_t> shape) const {
  if (std::ranges::equal(shape, shape_)) return *this;
  CKFS_TRY(const std::int64_t count, check_shape(dtype_, shape));
  if (count != numel()) {
    return fail(ErrorCode::InvalidArgument, "reshape {} to {}: {} elements become {}", text(shape_),
                text(shape), numel(), count);
  }
  const std::optional<Whole> storage = whole();
  auto body = std::make_shared<Body>();
  body->shape.assign(shape.begin(), shape.end());
  if (body_) body->boxes = body_->boxes;
  if (storage) body->program = storage->program;
  TensorExpr expr;
  expr.dtype_ = dtype_;
  expr.shape_ = body->shape;
  expr.storage_ = storage_;
  expr.body_ = std::move(body);
  return expr;
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
  CKFS_TRY(const std::vector<Box> aligned, align(boxes(), blocks));
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
    CKFS_TRY(const std::int64_t zeros, check_shape(dtype_, shape));
    std::vector<Box> boxes;
    if (zeros > 0) boxes.push_back({Box::kConstant, 0, 0, normalize({{zeros, 1, 0}}), nullptr});
    parts.push_back(make(dtype_, std::move(shape), std::move(boxes)));
    return {};
  };
  CKFS_TRY_VOID(add_zeros(before));
  parts.push_back(*this);
  CKFS_TRY_VOID(add_zeros(after));
  return concat(parts, dim);
}

Result<TensorExpr> TensorExpr::then(Step step) const {
  if (step.kind == Step::Kind::Cast) {
    if (step.dtype == dtype_) return *this;
    step.operand = 0;
    if (!is_castable_float(dtype_) || !is_castable_float(step.dtype)) {
      return fail(
          ErrorCode::Unsupported,
          "cast from {} to {}: only F64, F32, F16 and BF16 are cast (integers never, F8 only "
          "by its scale)",
          name(dtype_), name(step.dtype));
    }
  } else {
    if (step.dtype != dtype_) {
      return fail(ErrorCode::InvalidArgument, "step in {} on values of {}: cast first",
                  name(step.dtype), name(dtype_));
    }
    if (!is_castable_float(dtype_)) {
      return fail(ErrorCode::Unsupported, "step on values of {}: only F64, F32, F16 and BF16",
                  name(dtype_));
    }
  }

  TensorExpr expr = *this;
  expr.dtype_ = step.dtype;
  if (!body_ && cast_ == kNoCast && step.kind == Step::Kind::Cast) {
    expr.cast_ = static_cast<std::uint8_t>(step.dtype);
    return expr;
  }
  auto body = std::make_shared<Body>();
  body->shape.assign(shape_.begin(), shape_.end());
  if (const std::optional<Whole> storage = whole()) {
    body->program = extended(storage->program, step);
  } else {
    std::vector<Box> boxes = *body_->boxes;
    // Boxes that shared a program go on sharing one.
    std::vector<std::pair<std::shared_ptr<const Program>, std::shared_ptr<const Program>>> known;
    for (Box& box : boxes) {
      if (box.is_constant()) {
        if (keeps_zero(step)) continue;
        return fail(ErrorCode::Unsupported,
                    "multiply or add {} after pad: padding stays zero, so it comes before",
                    step.operand);
      }
      auto same = std::ranges::find(known, box.program, &decltype(known)::value_type::first);
      if (same == known.end()) {
        known.emplace_back(box.program, extended(box.program, step));
        same = known.end() - 1;
      }
      box.program = same->second;
    }
    body->boxes = std::make_shared<const std::vector<Box>>(std::move(boxes));
  }
  expr.shape_ = body->shape;
  expr.body_ = std::move(body);
  expr.cast_ = kNoCast;
  return expr;
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
                  text(part.shape_), text(head.shape_));
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
                  text(part.shape_), text(parts.front().shape_));
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
