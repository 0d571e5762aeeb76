// Every operation gives the list of boxes of its result at once; there is no tree of operations to
// simplify or to interpret later. A tree would be shorter to build, but each reader of it (planner,
// evaluator, exactness, cost model) would have to know every operation.
//
// Most tensors of most views are whole storages with at most one cast, and there are 92,000 of
// them in a large checkpoint: these keep no list, no shape and no program of their own.
#include "expr/tensor_expr.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/checked.h"
#include "expr/box.h"
#include "expr/shape.h"
#include "expr/steps.h"
#include "tensor/integers.h"

namespace ckfs {
namespace {

std::shared_ptr<const Program> cast_program(DType dtype) {
  // Shared by all tensors of all views; immutable, so the one exception to "no globals" is
  // harmless.
  static const auto shared = [] {
    std::array<std::shared_ptr<const Program>, kDTypeCount> programs;
    for (std::size_t i = 0; i < programs.size(); ++i) {
      programs[i] = std::make_shared<const Program>(
          Program{Step{Step::Kind::Cast, static_cast<DType>(i), 0}});
    }
    return programs;
  }();
  return shared[static_cast<std::size_t>(dtype)];
}

std::shared_ptr<const Program> extended(const std::shared_ptr<const Program>& program,
                                        const Step& step) {
  if (!program && step.kind == Step::Kind::Cast) return cast_program(step.dtype);
  Program longer = program ? *program : Program{};
  longer.push_back(step);
  return std::make_shared<const Program>(std::move(longer));
}

}  // namespace

std::shared_ptr<const TensorExpr::BoxList> TensorExpr::make_list(DType dtype,
                                                                 std::vector<Box> boxes) {
  auto list = std::make_shared<BoxList>();
  list->dtype = dtype;
  list->boxes = std::move(boxes);
  list->reach = ReachIndex(list->boxes.size(), [&](std::size_t i) {
    return list->boxes[i].target_offset + target_span(list->boxes[i].loops);
  });
  for (const Box& box : list->boxes) {
    list->is_move = list->is_move && box.program == nullptr;
    if (box.loops.empty()) continue;
    const Loop& inner = box.loops.back();
    const bool together =
        inner.target_stride == 1 && (box.is_constant() || inner.source_stride == 1);
    if (together && box.loops.size() == 1) continue;
    const std::int64_t run = together ? inner.count : 1;
    list->shortest_run = std::min(run, list->shortest_run.value_or(run));
  }
  return list;
}

TensorExpr TensorExpr::make(DType dtype, std::vector<std::int64_t> shape, std::vector<Box> boxes) {
  auto body = std::make_shared<Body>();
  body->shape = std::move(shape);
  body->list = make_list(dtype, join(std::move(boxes)));
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
      empty = empty || part.count[d] == 0;
      const std::int64_t cell = part.cell.empty() ? part.count[d] : part.cell[d];
      if (cell >= part.count[d]) {
        box.loops.push_back({part.count[d], strides[d], part.stride[d]});
        continue;
      }
      CKFS_CHECK(part.count[d] % cell == 0);
      box.loops.push_back({part.count[d] / cell, cell * strides[d], part.cell_stride[d]});
      box.loops.push_back({cell, strides[d], part.stride[d]});
    }
    if (empty) continue;
    box.loops = normalize(std::move(box.loops));
    boxes.push_back(std::move(box));
  }
  return make(dtype, {stored.shape.begin(), stored.shape.end()}, std::move(boxes));
}

std::size_t TensorExpr::bytes() const {
  constexpr std::size_t kShared = 2 * sizeof(void*);  // what counts the owners of an object
  if (!body_) return 0;
  std::size_t bytes =
      kShared + sizeof(Body) + body_->shape.capacity() * sizeof(body_->shape.front());
  if (!body_->list) return bytes;
  bytes += kShared + sizeof(BoxList) + body_->list->boxes.capacity() * sizeof(Box) +
           body_->list->reach.bytes();
  for (const Box& box : body_->list->boxes) bytes += box.loops.capacity() * sizeof(Loop);
  return bytes;
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
  if (!storage) {
    std::vector<Box> boxes = body_->list->boxes;
    for (Box& box : boxes) finish(box);
    return boxes;
  }
  const std::int64_t count = numel();
  if (count == 0) return {};
  Box box{storage->storage, 0, 0, {}, storage->program};
  if (count > 1) box.loops.push_back({count, 1, 1});
  return {box};
}

std::span<const Box> TensorExpr::box_list() const {
  if (!body_ || !body_->list) return {};
  return body_->list->boxes;
}

std::shared_ptr<const Program> TensorExpr::steps_of(const Box& box) const {
  if (cast_ == kNoCast || box.is_constant()) return box.program;
  return cast_program(static_cast<DType>(cast_));
}

void TensorExpr::finish(Box& box) const {
  if (cast_ == kNoCast) return;
  if (!box.is_constant()) {
    box.program = steps_of(box);
    return;
  }
  box.source_offset =
      cast_constant(body_->list->dtype, box.source_offset, static_cast<DType>(cast_));
}

bool TensorExpr::is_move() const {
  return cast_ == kNoCast && (!body_ || body_->is_move());
}

std::vector<Box> TensorExpr::boxes(std::int64_t begin, std::int64_t end) const {
  std::vector<Box> pieces;
  const auto add = [&](const Box& box) {
    std::ranges::move(clip(box, begin, end), std::back_inserter(pieces));
  };
  if (whole()) {
    for (const Box& box : boxes()) add(box);
    return pieces;
  }
  for_each_box(begin, end, add);
  for (Box& piece : pieces) finish(piece);
  return pieces;
}

std::size_t TensorExpr::visits(std::int64_t begin, std::int64_t end) const {
  return whole() ? 1 : for_each_box(begin, end, [](const Box& /*box*/) {});
}

/// Calls use() for the boxes that may have indices in the range, and gives what it looked at.
template <typename Use>
std::size_t TensorExpr::for_each_box(std::int64_t begin, std::int64_t end, Use use) const {
  const BoxList& list = *body_->list;
  const auto behind = std::ranges::lower_bound(list.boxes, end, {}, &Box::target_offset);
  return list.reach.for_each(begin, static_cast<std::size_t>(behind - list.boxes.begin()),
                             [&](std::size_t i) { use(list.boxes[i]); });
}

std::optional<std::int64_t> TensorExpr::shortest_run() const {
  if (whole()) return std::nullopt;
  return body_->list->shortest_run;
}

std::optional<TensorExpr::Whole> TensorExpr::whole() const {
  if (storage_ == Box::kConstant) return std::nullopt;
  if (cast_ == kNoCast) return Whole{storage_, body_ ? body_->program : nullptr};
  return Whole{storage_, cast_program(static_cast<DType>(cast_))};
}

Result<void> TensorExpr::check_dim(std::int64_t dim) const {
  if (dim >= 0 && dim < static_cast<std::int64_t>(shape_.size())) return {};
  return fail(ErrorCode::InvalidArgument, "dimension {} of shape {}: out of range (0 to {})", dim,
              shape_text(shape_), static_cast<std::int64_t>(shape_.size()) - 1);
}

Result<void> TensorExpr::check_movable() const {
  if (bits(dtype_) % 8 == 0) return {};
  return fail(ErrorCode::Unsupported,
              "{}: elements of {} bits are only moved as a whole tensor (reshape)", name(dtype_),
              bits(dtype_));
}

Result<TensorExpr> TensorExpr::reshape(std::span<const std::int64_t> shape) const {
  if (std::ranges::equal(shape, shape_)) return *this;
  CKFS_TRY(const std::int64_t count, check_shape(dtype_, shape));
  if (count != numel()) {
    return fail(ErrorCode::InvalidArgument, "reshape {} to {}: {} elements become {}",
                shape_text(shape_), shape_text(shape), numel(), count);
  }
  auto body = std::make_shared<Body>();
  body->shape.assign(shape.begin(), shape.end());
  if (body_) {
    body->list = body_->list;
    body->program = body_->program;
  }
  TensorExpr expr = *this;
  expr.shape_ = body->shape;
  expr.body_ = std::move(body);
  return expr;
}

Result<TensorExpr> TensorExpr::then(Step step) const {
  if (step.kind == Step::Kind::Cast || step.kind == Step::Kind::CastKeepingNan) {
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

  return append(step);
}

Result<TensorExpr> TensorExpr::at_scale_one() const {
  if (!is_f8(dtype_)) {
    return fail(ErrorCode::Unsupported, "{} at a scale of 1: only F8 is", name(dtype_));
  }
  return append({Step::Kind::Cast, DType::F32, 0});
}

Result<TensorExpr> TensorExpr::integers_as(DType dtype) const {
  if (!is_integer(dtype_) || !is_castable_float(dtype)) {
    return fail(ErrorCode::Unsupported,
                "integers of {} as {}: only integers become F64, F32, F16 or BF16", name(dtype_),
                name(dtype));
  }
  return append({Step::Kind::Cast, dtype, 0});
}

Result<TensorExpr> TensorExpr::append(Step step) const {
  CKFS_TRY_VOID(check_shape(step.dtype, shape()));
  TensorExpr expr = *this;
  expr.dtype_ = step.dtype;
  if (is_move() && step.kind == Step::Kind::Cast) {
    expr.cast_ = static_cast<std::uint8_t>(step.dtype);
    return expr;
  }
  auto body = std::make_shared<Body>();
  body->shape.assign(shape_.begin(), shape_.end());
  if (const std::optional<Whole> storage = whole()) {
    body->program = extended(storage->program, step);
  } else {
    std::vector<Box> boxes = this->boxes();
    // Boxes that shared a program still share one.
    std::map<std::shared_ptr<const Program>, std::shared_ptr<const Program>> known;
    for (Box& box : boxes) {
      if (box.is_constant()) {
        box.source_offset = step_constant(dtype_, box.source_offset, step);
        continue;
      }
      const auto [same, is_new] = known.try_emplace(box.program);
      if (is_new) same->second = extended(box.program, step);
      box.program = same->second;
    }
    body->list = make_list(step.dtype, std::move(boxes));
  }
  expr.shape_ = body->shape;
  expr.body_ = std::move(body);
  expr.cast_ = kNoCast;
  return expr;
}

Result<TensorExpr> TensorExpr::then(const std::shared_ptr<const Program>& program) const {
  TensorExpr expr = *this;
  for (const Step& step : *program) {
    CKFS_TRY(expr, expr.then(step));
  }
  const std::optional<Whole> before = whole();
  const std::optional<Whole> after = expr.whole();
  if (!before || before->program || expr.cast_ != kNoCast || !after || !after->program) return expr;
  if (after->program->size() != program->size()) return expr;  // a cast that changed nothing
  auto body = std::make_shared<Body>();
  body->shape = expr.body_->shape;
  body->program = program;
  expr.shape_ = body->shape;
  expr.body_ = std::move(body);
  return expr;
}

}  // namespace ckfs
