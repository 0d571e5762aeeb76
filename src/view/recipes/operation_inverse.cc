// The inverse of each operation: turns MaxText's trees and layouts of experts into the tensors that
// they were made of.
#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "view/recipes/operation.h"

namespace ckfs {

std::optional<Operation> Operation::inverse(const FlowShape& before, Scope scope) const {
  const auto all_of = [](std::span<const std::int64_t> values) {
    std::vector<Expression> constants;
    for (const std::int64_t value : values) {
      constants.push_back(Expression::of(static_cast<double>(value)));
    }
    return constants;
  };
  // There is one inverse for all tensors: if it depends on a shape, all must have that shape.
  const bool is_alike = std::ranges::all_of(
      before.shapes, [&](const auto& shape) { return shape == before.shapes.front(); });
  const bool depends =
      kind == Kind::Reshape || kind == Kind::Shape || kind == Kind::Pad || operand.needs_shape() ||
      std::ranges::any_of(numbers, [](const Expression& number) { return number.needs_shape(); });
  if (depends && !is_alike) return std::nullopt;
  // Numbers that depend on the tensor were checked when the operation itself ran.
  scope.shape = before.shapes.front();
  const auto extent = [&](std::size_t column) -> std::optional<std::int64_t> {
    const std::vector<std::int64_t>& shape = before.shapes[column];
    const auto d = static_cast<std::size_t>(dim.evaluate_whole(scope).value_or(0));
    if (d >= shape.size()) return std::nullopt;
    return shape[d];
  };
  Operation op;
  op.line = line;
  op.dim = dim;
  switch (kind) {
    case Kind::Stack:
    case Kind::Unstack:
      // That of the other tensors would be another one.
      if (dim.needs_shape()) return std::nullopt;
      op = *this;
      op.kind = kind == Kind::Stack ? Kind::Unstack : Kind::Stack;
      return op;
    case Kind::Concat: {
      op.kind = Kind::Split;
      op.sizes = true;
      std::vector<std::int64_t> extents;
      for (std::size_t i = 0; i < before.shapes.size(); ++i) {
        const std::optional<std::int64_t> one = extent(i);
        if (!one) return std::nullopt;
        extents.push_back(*one);
      }
      op.numbers = all_of(extents);
      return op;
    }
    case Kind::Split:
      // Of several columns each is split: which parts were whose is lost.
      if (before.shapes.size() > 1) return std::nullopt;
      op.kind = Kind::Concat;
      return op;
    case Kind::Interleave:
      if (before.shapes.size() > kMaxNumbers) return std::nullopt;
      op.kind = Kind::Deinterleave;
      op.numbers = {Expression::of(static_cast<double>(before.shapes.size()))};
      return op;
    case Kind::Deinterleave:
      if (before.shapes.size() > 1) return std::nullopt;
      op.kind = Kind::Interleave;
      return op;
    case Kind::Transpose: {
      op.kind = Kind::Transpose;
      std::vector<std::int64_t> back(numbers.size());
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const Result<std::int64_t> from = numbers[i].evaluate_whole(scope);
        if (!from || *from < 0 || static_cast<std::size_t>(*from) >= back.size()) {
          return std::nullopt;
        }
        back[static_cast<std::size_t>(*from)] = static_cast<std::int64_t>(i);
      }
      op.numbers = all_of(back);
      return op;
    }
    case Kind::Reshape:
      op.kind = Kind::Reshape;
      op.numbers = all_of(before.shapes.front());
      return op;
    case Kind::Pad: {
      op.kind = Kind::Slice;
      const std::optional<std::int64_t> size = extent(0);
      if (!size) return std::nullopt;
      // Of the tensor without the padding.
      const Result<std::int64_t> begin = sizes ? 0 : numbers.front().evaluate_whole(scope);
      if (!begin) return std::nullopt;
      op.numbers = {Expression::of(static_cast<double>(*begin)),
                    Expression::of(static_cast<double>(*size)), Expression::of(1)};
      return op;
    }
    case Kind::Cast:
    case Kind::Promote:
      op.kind = Kind::Cast;
      op.dtype = before.dtype;
      return op;
    case Kind::Shape:
      op.kind = Kind::Shape;
      op.numbers = all_of(before.shapes.front());
      return op;
    case Kind::Multiply:
    case Kind::Add: {
      const Result<double> value = operand.evaluate(scope);
      if (!value || (kind == Kind::Multiply && *value == 0)) return std::nullopt;
      op.kind = kind;
      op.operand = Expression::of(kind == Kind::Add ? -*value : 1 / *value);
      return op;
    }
    case Kind::ConcatOver:
    case Kind::Slice:
    case Kind::FlushSubnormals:
    case Kind::CanonicalNan:
    case Kind::Fill:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace ckfs
