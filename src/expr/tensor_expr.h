// A target tensor as a lazy expression over storages, kept in one normal form: boxes.
//
// All layout operations of the known converters (transpose, reshape, slice, stack, concatenate,
// interleave, pad) compose into a piecewise affine map from the target's flat row-major index to
// flat indices of storages. A box is one affine piece: a nest of loops, each with a stride in the
// target and a stride in the storage, both in elements; so a factored dimension (an interleave, a
// split of heads) is just one more loop. Evaluators (src/engine) know boxes and nothing else.
//
// Expressions are values; they are immutable once made and cheap to copy (boxes are shared).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "catalog/catalog.h"
#include "expr/reach_index.h"
#include "tensor/dtype.h"

namespace ckfs {

/// One loop of a box: index k < count moves the target by k * target_stride elements and the
/// storage by k * source_stride elements.
struct Loop {
  std::int64_t count = 1;
  std::int64_t target_stride = 0;
  std::int64_t source_stride = 0;

  bool operator==(const Loop&) const = default;
};

/// The steps for each value of a box, in order, each with its own rounding dtype. Only F64, F32,
/// F16 and BF16 take steps. Multiply and Add round the operand to F32, compute in F32 (both in F64
/// where `dtype` is F64) and round the result to `dtype`, as torch does with a Python scalar.
struct Step {
  enum class Kind : std::uint8_t {
    Cast,             // to `dtype`
    CastKeepingNan,   // the same, but a NaN keeps the first bits of its payload
    Multiply,         // by `operand`, in `dtype`; the value has that dtype before and after
    Add,              // `operand`, in `dtype`
    FlushSubnormals,  // subnormal values of `dtype` become zero of the same sign
    CanonicalNan,     // NaN becomes the positive quiet NaN of `dtype`
  };
  Kind kind = Kind::Cast;
  DType dtype = DType::F32;
  double operand = 0;

  bool operator==(const Step&) const = default;
};

using Program = std::vector<Step>;

/// A piece of the target: either a constant (padding, for one) or a strided view of one storage. A
/// constant has no program and no source strides: source_offset is the bits of each of its elements
/// (of 16 bytes: of the first 8; the others are zero), in the tensor's dtype. Loops are sorted by
/// target_stride, largest first, and are digits of the target's flat index: each target_stride
/// exceeds the span of all inner loops; no loop has count 1.
struct Box {
  static constexpr StorageId kConstant = ~StorageId{0};

  StorageId source = kConstant;
  std::int64_t target_offset = 0;
  std::int64_t source_offset = 0;
  std::vector<Loop> loops;
  std::shared_ptr<const Program> program;  // nullptr: none, a pure move

  bool is_constant() const { return source == kConstant; }
  std::int64_t numel() const;
  bool operator==(const Box& other) const;
};

/// A tensor: dtype, shape, and boxes that visit each of its elements exactly once.
class TensorExpr {
 public:
  /// The stored tensor as it is decoded: value dtype of its storage, no step. Its shape may be the
  /// catalog's own: the catalog must outlive it, and all expressions of that shape that are made of
  /// it.
  static TensorExpr stored(const Catalog& catalog, TensorId tensor);
  /// A tensor of zeros. Errors: InvalidArgument (no such shape).
  static Result<TensorExpr> zeros(DType dtype, std::span<const std::int64_t> shape);
  /// A tensor whose elements are all `value`, rounded to `dtype` as a cast from F64 does it.
  /// Errors: InvalidArgument (no such shape; a value that is not finite in the dtype, or that the
  /// integer does not hold), Unsupported (neither an integer nor one of F64, F32, F16 and BF16).
  static Result<TensorExpr> filled(DType dtype, std::span<const std::int64_t> shape, double value);

  DType dtype() const { return dtype_; }
  std::span<const std::int64_t> shape() const { return shape_; }
  std::int64_t numel() const;
  /// Bytes in the target; whole bytes by construction.
  std::uint64_t nbytes() const;

  /// The boxes by target_offset; none for a tensor without elements. An expression over one whole
  /// storage (the common case, which keeps no list) gives one box with at most one loop.
  std::vector<Box> boxes() const;

  /// The same list without a copy; empty where whole() has a value. The boxes may be without the
  /// last of the values' steps: steps_of(box) has all (but constants of boxes() alone are cast).
  /// Valid as long as the expression or a copy of it.
  std::span<const Box> box_list() const;
  /// The steps for the values of a box of box_list(); nullptr: none.
  std::shared_ptr<const Program> steps_of(const Box& box) const;

  /// The boxes of the target indices in [begin, end): the clip() of each that has any. Costs as
  /// much as there are boxes whose spans meet the range, however many others there are.
  std::vector<Box> boxes(std::int64_t begin, std::int64_t end) const;
  /// How many boxes, and nodes of the index over them, boxes(begin, end) looks at.
  std::size_t visits(std::int64_t begin, std::int64_t end) const;

  /// The fewest elements that a box moves from consecutive places to consecutive places, over the
  /// boxes that have more than one such run; nullopt: none has (so for a whole storage). Costs
  /// nothing.
  std::optional<std::int64_t> shortest_run() const;

  /// The memory that it keeps beside itself, its steps apart; copies share it.
  std::size_t bytes() const;

  /// The storage and the steps (nullptr: none), if the tensor is one whole storage in row-major
  /// order, and no operation has moved it away and back.
  struct Whole {
    StorageId storage;
    std::shared_ptr<const Program> program;
  };
  std::optional<Whole> whole() const;

  // Operations. Each gives a new expression, or an Error that says the rule: InvalidArgument; or
  // Unsupported, where the result has too many boxes, elements of less than a byte would move, or
  // values of the dtype take no such step. The caller puts the tensor's name before it.

  /// New dimension d is old dimension permutation[d].
  Result<TensorExpr> transpose(std::span<const std::int64_t> permutation) const;
  /// The same elements in row-major order under another shape.
  Result<TensorExpr> reshape(std::span<const std::int64_t> shape) const;
  /// Elements begin, begin + step, ... (count of them) of dimension `dim`.
  Result<TensorExpr> slice(std::int64_t dim, std::int64_t begin, std::int64_t count,
                           std::int64_t step = 1) const;
  /// Zero elements before and after along `dim`.
  Result<TensorExpr> pad(std::int64_t dim, std::int64_t before, std::int64_t after) const;
  /// One more step for every value, padding and constants too. A cast to the values' own dtype adds
  /// no step; a step other than a cast names the values' dtype. InvalidArgument: 2^61 bytes or
  /// more.
  Result<TensorExpr> then(Step step) const;
  /// Several steps, which many tensors can share. Requires: not nullptr.
  Result<TensorExpr> then(const std::shared_ptr<const Program>& program) const;
  Result<TensorExpr> cast(DType dtype) const { return then({Step::Kind::Cast, dtype, 0}); }
  /// The values of F8 as they are, without a scale, in F32. No cast does this, because codes
  /// without their scale are not values unless the user says so.
  Result<TensorExpr> at_scale_one() const;
  /// Integers as values of a float dtype, rounded. No cast does this, so that none happens unasked.
  Result<TensorExpr> integers_as(DType dtype) const;

  /// Equal shapes on a new dimension `dim`. The dtypes must be equal (promote with cast first).
  static Result<TensorExpr> stack(std::span<const TensorExpr> parts, std::int64_t dim);
  /// One after another along `dim`, of equal dtypes and else of equal shapes.
  static Result<TensorExpr> concat(std::span<const TensorExpr> parts, std::int64_t dim);
  /// Element k of each part in turn along `dim`: a0 b0 a1 b1 ... Dtypes and shapes must be equal.
  static Result<TensorExpr> interleave(std::span<const TensorExpr> parts, std::int64_t dim);
  /// `parts` equal slices along `dim`.
  Result<std::vector<TensorExpr>> split(std::int64_t dim, std::int64_t parts) const;

 private:
  /// The same with a step that was checked.
  Result<TensorExpr> append(Step step) const;

  /// Members that the common case (a whole storage under its catalog shape with at most one cast)
  /// does not need; a checkpoint may have 92,000 of those in each of four views. Views that differ
  /// in a last cast alone share it.
  struct BoxList {
    std::vector<Box> boxes;  // by target_offset
    ReachIndex reach;        // of the boxes' target indices
    std::optional<std::int64_t> shortest_run;
    bool is_move = true;       // no box has a program
    DType dtype = DType::F32;  // of the constants
  };
  struct Body {
    std::vector<std::int64_t> shape;
    std::shared_ptr<const BoxList> list;     // nullptr: the whole of storage_
    std::shared_ptr<const Program> program;  // where list is nullptr
    bool is_move() const { return list ? list->is_move : program == nullptr; }
  };
  static constexpr std::uint8_t kNoCast = 0xff;

  TensorExpr() = default;
  template <typename Use>
  std::size_t for_each_box(std::int64_t begin, std::int64_t end, Use use) const;
  static std::shared_ptr<const BoxList> make_list(DType dtype, std::vector<Box> boxes);
  static TensorExpr make(DType dtype, std::vector<std::int64_t> shape, std::vector<Box> boxes);
  static Result<TensorExpr> constant(DType dtype, std::span<const std::int64_t> shape,
                                     std::int64_t bits);
  /// Makes a box of the list one of boxes(): with the last cast, too.
  void finish(Box& box) const;
  Result<void> check_dim(std::int64_t dim) const;
  Result<void> check_movable() const;
  bool is_move() const;  // has no step

  std::span<const std::int64_t> shape_;  // the catalog's, or that of body_
  std::shared_ptr<const Body> body_;     // nullptr: the common case
  StorageId storage_ = Box::kConstant;   // where the tensor is one whole storage
  DType dtype_ = DType::F32;
  std::uint8_t cast_ = kNoCast;  // the only step, a cast to this DType; body_ has none then
};

/// The part of `box` whose target indices lie in [begin, end), as boxes; in the order of their
/// target offsets as far as the loops allow. The one function by which slices and reads cut boxes.
std::vector<Box> clip(const Box& box, std::int64_t begin, std::int64_t end);

}  // namespace ckfs
