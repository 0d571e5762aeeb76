// One struct with a kind rather than a class for each operation: they differ in a line or two, and
// the code that reads, runs and inverts a recipe each wants all of them side by side.
#include "view/recipes/operation.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "encoding/plain_encoding.h"
#include "tensor/integers.h"
#include "tensor/shape.h"

namespace ckfs {
namespace {

using Kind = Operation::Kind;

/// Reads the members of an operation's object and says which are left over.
class Members {
 public:
  Members(const JsonNode& node, std::string_view file, std::span<const std::string> names)
      : node_(node), file_(file), names_(names) {}

  const JsonNode* find(std::string_view key) {
    used_.push_back(key);
    return node_.find(key);
  }
  Failure wrong(const JsonNode& at, std::string_view text) const {
    return fail(ErrorCode::Corrupt, "{}:{}: {}", file_, at.line, text);
  }
  Result<Expression> expression(const JsonNode& value) const {
    if (value.kind == JsonNode::Kind::Number) return Expression::of(value.number);
    if (value.kind != JsonNode::Kind::String) {
      return wrong(value,
                   fmt::format("{} where a number or an expression belongs", value.kind_text()));
    }
    auto parsed = Expression::parse(value.text, names_);
    if (!parsed) return wrong(value, parsed.error().message());
    return parsed;
  }
  Result<std::optional<Expression>> optional_expression(std::string_view key) {
    const JsonNode* value = find(key);
    if (value == nullptr) return std::nullopt;
    CKFS_TRY(Expression parsed, expression(*value));
    return parsed;
  }
  Result<Expression> expression_or(std::string_view key, double otherwise) {
    CKFS_TRY(std::optional<Expression> parsed, optional_expression(key));
    return parsed ? std::move(*parsed) : Expression::of(otherwise);
  }
  Result<std::vector<Expression>> list(const JsonNode& value) const {
    if (value.kind != JsonNode::Kind::List || value.items.size() > kMaxNumbers) {
      return wrong(value, fmt::format("{} where a list of at most {} numbers belongs",
                                      value.kind_text(), kMaxNumbers));
    }
    std::vector<Expression> numbers;
    for (const JsonNode& item : value.items) {
      CKFS_TRY(Expression number, expression(item));
      numbers.push_back(std::move(number));
    }
    return numbers;
  }
  Result<void> nothing_else() const {
    for (const std::string& key : node_.keys) {
      if (std::ranges::find(used_, key) != used_.end()) continue;
      return wrong(node_, fmt::format("{} has no member {}", used_.front(), quote(key)));
    }
    return {};
  }

 private:
  const JsonNode& node_;
  std::string_view file_;
  std::span<const std::string> names_;
  std::vector<std::string_view> used_;
};

struct Spelling {
  std::string_view name;
  Kind kind;
};
constexpr std::array<Spelling, 17> kSpellings{{{"stack", Kind::Stack},
                                               {"unstack", Kind::Unstack},
                                               {"concat", Kind::Concat},
                                               {"split", Kind::Split},
                                               {"interleave", Kind::Interleave},
                                               {"deinterleave", Kind::Deinterleave},
                                               {"transpose", Kind::Transpose},
                                               {"reshape", Kind::Reshape},
                                               {"slice", Kind::Slice},
                                               {"pad", Kind::Pad},
                                               {"shape", Kind::Shape},
                                               {"promote", Kind::Promote},
                                               {"cast", Kind::Cast},
                                               {"multiply", Kind::Multiply},
                                               {"add", Kind::Add},
                                               {"fill", Kind::Fill},
                                               {"flush_subnormals", Kind::FlushSubnormals}}};

Scope with_shape(Scope scope, const TensorExpr& expr) {
  scope.shape = expr.shape();
  return scope;
}

/// The parts of a column by their keys, those of `key` together and in its order.
void sort_parts(FlowColumn& column, std::size_t key) {
  const auto before = [key](const FlowPart& a, const FlowPart& b) {
    for (std::size_t k = 0; k < kMaxKeys; ++k) {
      if (k != key && a.keys[k] != b.keys[k]) return a.keys[k] < b.keys[k];
    }
    return a.keys[key] < b.keys[key];
  };
  if (!std::ranges::is_sorted(column.parts, before)) std::ranges::sort(column.parts, before);
}

bool same_but(const FlowPart& a, const FlowPart& b, std::size_t key) {
  for (std::size_t k = 0; k < kMaxKeys; ++k) {
    if (k != key && a.keys[k] != b.keys[k]) return false;
  }
  return true;
}

}  // namespace

Result<Operation> Operation::parse(const JsonNode& node, std::string_view file,
                                   const Variables& variables, std::vector<std::string>& keys) {
  Members members(node, file, variables);
  if (node.kind != JsonNode::Kind::Object || node.keys.empty()) {
    return members.wrong(node, fmt::format("{} where an operation belongs", node.kind_text()));
  }
  Operation op;
  op.line = node.line;
  const JsonNode* main = nullptr;
  for (const Spelling& spelling : kSpellings) {
    if (node.keys.front() != spelling.name) continue;
    main = members.find(spelling.name);
    op.kind = spelling.kind;
  }
  if (main == nullptr && node.keys.front() == "canonical_nan") {
    main = members.find("canonical_nan");
    op.kind = Kind::CanonicalNan;
  }
  if (main == nullptr) {
    return members.wrong(
        node, fmt::format("{} is not an operation (the operation comes first in its object)",
                          quote(node.keys.front())));
  }

  const auto take_key = [&](const JsonNode& value) -> Result<void> {
    if (value.kind != JsonNode::Kind::String ||
        std::ranges::find(variables, value.text) == variables.end()) {
      return members.wrong(value, fmt::format("{} is not a variable of this rule",
                                              value.kind == JsonNode::Kind::String
                                                  ? quote(value.text)
                                                  : std::string(value.kind_text())));
    }
    op.variable = value.text;
    const auto known = std::ranges::find(keys, op.variable);
    op.key = static_cast<std::size_t>(known - keys.begin());
    if (known != keys.end()) {
      return members.wrong(value, fmt::format("{} is stacked or unstacked twice", op.variable));
    }
    if (keys.size() == kMaxKeys) {
      return members.wrong(value, fmt::format("more than {} variables are stacked", kMaxKeys));
    }
    keys.push_back(op.variable);
    return {};
  };

  switch (op.kind) {
    case Kind::Stack:
    case Kind::Unstack: {
      CKFS_TRY_VOID(take_key(*main));
      CKFS_TRY(op.dim, members.expression_or("dim", 0));
      CKFS_TRY(op.count, members.optional_expression("count"));
      break;
    }
    case Kind::Concat: {
      CKFS_TRY(op.dim, members.expression(*main));
      if (const JsonNode* over = members.find("over")) {
        op.kind = Kind::ConcatOver;
        CKFS_TRY_VOID(take_key(*over));
      }
      break;
    }
    case Kind::Split:
    case Kind::Deinterleave: {
      CKFS_TRY(op.dim, members.expression(*main));
      const JsonNode* sizes = op.kind == Kind::Split ? members.find("sizes") : nullptr;
      op.sizes = sizes != nullptr;
      if (op.sizes) {
        CKFS_TRY(op.numbers, members.list(*sizes));
        // Of no elements, none would be made.
        if (op.numbers.empty()) return members.wrong(*sizes, "split: sizes has no number");
      } else {
        CKFS_TRY(Expression parts, members.expression_or("parts", 2));
        op.numbers.push_back(std::move(parts));
      }
      break;
    }
    case Kind::Interleave: {
      CKFS_TRY(op.dim, members.expression(*main));
      break;
    }
    case Kind::Transpose:
    case Kind::Reshape:
    case Kind::Shape: {
      CKFS_TRY(op.numbers, members.list(*main));
      break;
    }
    case Kind::Slice: {
      CKFS_TRY(op.dim, members.expression(*main));
      CKFS_TRY(Expression begin, members.expression_or("begin", 0));
      CKFS_TRY(Expression count, members.expression_or("count", -1));
      CKFS_TRY(Expression step, members.expression_or("step", 1));
      op.numbers = {std::move(begin), std::move(count), std::move(step)};
      break;
    }
    case Kind::Pad: {
      CKFS_TRY(op.dim, members.expression(*main));
      CKFS_TRY(std::optional<Expression> to, members.optional_expression("to"));
      op.sizes = to.has_value();
      if (to) {
        op.numbers = {std::move(*to)};
      } else {
        CKFS_TRY(Expression before, members.expression_or("before", 0));
        CKFS_TRY(Expression after, members.expression_or("after", 0));
        op.numbers = {std::move(before), std::move(after)};
      }
      break;
    }
    case Kind::Cast: {
      const bool is_word = main->kind == JsonNode::Kind::String;
      const std::string_view word = is_word ? std::string_view(main->text) : std::string_view();
      if (const JsonNode* integers = members.find("integers")) {
        if (integers->kind != JsonNode::Kind::Boolean) {
          return members.wrong(*integers, "integers: neither true nor false");
        }
        op.integers = integers->number != 0;
      }
      op.other = word == "taken" ? Other::Taken : word == "view" ? Other::View : Other::None;
      if (op.other != Other::None) break;
      const std::optional<DType> dtype = parse_dtype(word);
      constexpr std::array kCasts{DType::F64, DType::F32, DType::F16, DType::BF16};
      if (!dtype || std::ranges::find(kCasts, *dtype) == kCasts.end()) {
        return members.wrong(*main, "cast: no such dtype (F64, F32, F16, BF16, taken or view)");
      }
      op.dtype = *dtype;
      break;
    }
    case Kind::Fill: {
      CKFS_TRY(op.operand, members.expression(*main));
      const JsonNode* dtype = members.find("dtype");
      op.other = dtype == nullptr ? Other::Taken : Other::None;
      if (dtype != nullptr) {
        const auto known =
            parse_dtype(dtype->kind == JsonNode::Kind::String ? dtype->text : std::string());
        if (!known || !(is_integer(*known) || is_castable_float(*known))) {
          return members.wrong(*dtype, "fill: no such dtype (F64, F32, F16, BF16 or an integer's)");
        }
        op.dtype = *known;
      }
      const JsonNode* shape = members.find("shape");
      op.sizes = shape != nullptr;
      if (op.sizes) {
        CKFS_TRY(op.numbers, members.list(*shape));
      }
      break;
    }
    case Kind::Multiply:
    case Kind::Add: {
      CKFS_TRY(op.operand, members.expression(*main));
      break;
    }
    default:
      if (main->kind != JsonNode::Kind::Boolean || main->number == 0) {
        return members.wrong(*main, fmt::format("{}: only true has a meaning", node.keys.front()));
      }
  }
  CKFS_TRY_VOID(members.nothing_else());
  return op;
}

namespace {

Result<std::int64_t> whole(const Expression& expression, const Scope& scope) {
  return expression.evaluate_whole(scope);
}

/// Joins the parts of each column that differ in one key.
Result<Flow> join_key(const Operation& op, Flow flow, const Scope& scope) {
  std::int64_t wanted = -1;
  if (op.count) {
    CKFS_TRY(wanted, whole(*op.count, scope));
  }
  for (FlowColumn& column : flow.columns) {
    sort_parts(column, op.key);
    std::vector<FlowPart> joined;
    for (std::size_t begin = 0; begin < column.parts.size();) {
      std::vector<TensorExpr> exprs;
      std::size_t end = begin;
      for (; end < column.parts.size() && same_but(column.parts[begin], column.parts[end], op.key);
           ++end) {
        const std::int32_t value = column.parts[end].keys[op.key];
        const auto expected = static_cast<std::int32_t>(end - begin);
        if (value != expected) {
          return fail(ErrorCode::Unsupported, "{} {} {} (in the group of \"{}\")", op.variable,
                      std::min(value, expected), value < expected ? "comes twice" : "is missing",
                      one_line(column.name));
        }
        exprs.push_back(std::move(column.parts[end].expr));
      }
      if (wanted >= 0 && wanted != static_cast<std::int64_t>(exprs.size())) {
        return fail(ErrorCode::Unsupported, "{} values of {} where there must be {} (\"{}\")",
                    exprs.size(), op.variable, wanted, one_line(column.name));
      }
      CKFS_TRY(const std::int64_t dim, whole(op.dim, with_shape(scope, exprs.front())));
      CKFS_TRY(TensorExpr expr, op.kind == Kind::Stack ? TensorExpr::stack(exprs, dim)
                                                       : TensorExpr::concat(exprs, dim));
      FlowPart part{column.parts[begin].keys, std::move(expr)};
      part.keys[op.key] = 0;
      joined.push_back(std::move(part));
      begin = end;
    }
    column.parts = std::move(joined);
  }
  return flow;
}

Failure too_many_parts() {
  return fail(ErrorCode::Unsupported, "more than {} tensors in a group", kMaxParts);
}

Result<Flow> unstack(const Operation& op, Flow flow, const Scope& scope) {
  std::size_t parts = 0;
  for (FlowColumn& column : flow.columns) {
    std::vector<FlowPart> all;
    for (const FlowPart& part : column.parts) {
      const Scope here = with_shape(scope, part.expr);
      CKFS_TRY(const std::int64_t dim, whole(op.dim, here));
      const std::vector<std::int64_t> shape(part.expr.shape().begin(), part.expr.shape().end());
      if (dim < 0 || dim >= static_cast<std::int64_t>(shape.size())) {
        return fail(ErrorCode::InvalidArgument, "unstack: no dimension {} in a shape of {}", dim,
                    shape.size());
      }
      const std::int64_t count = shape[static_cast<std::size_t>(dim)];
      if (count == 0) {
        return fail(ErrorCode::Unsupported, "unstack: nothing along dimension {} of shape {}", dim,
                    shape_text(shape));
      }
      if (op.count) {
        CKFS_TRY(const std::int64_t wanted, whole(*op.count, here));
        if (wanted >= 0 && wanted != count) {
          return fail(ErrorCode::Unsupported, "{} values of {} where there must be {}", count,
                      op.variable, wanted);
        }
      }
      parts += static_cast<std::size_t>(count);
      if (parts > kMaxParts) return too_many_parts();
      CKFS_TRY(std::vector<TensorExpr> slices, part.expr.split(dim, count));
      std::vector<std::int64_t> rest = shape;
      rest.erase(rest.begin() + dim);
      for (std::size_t i = 0; i < slices.size(); ++i) {
        CKFS_TRY(TensorExpr expr, slices[i].reshape(rest));
        all.push_back({part.keys, std::move(expr)});
        all.back().keys[op.key] = static_cast<std::int32_t>(i);
      }
    }
    column.parts = std::move(all);
  }
  return flow;
}

/// All columns become one.
Result<Flow> join_columns(const Operation& op, Flow flow, const Scope& scope) {
  FlowColumn& head = flow.columns.front();
  for (FlowColumn& column : flow.columns) {
    sort_parts(column, 0);
    if (column.parts.size() != head.parts.size()) {
      return fail(ErrorCode::Unsupported, "{} tensors like \"{}\", but {} like \"{}\"",
                  head.parts.size(), one_line(head.name), column.parts.size(),
                  one_line(column.name));
    }
  }
  for (std::size_t i = 0; i < head.parts.size(); ++i) {
    std::vector<TensorExpr> exprs;
    for (const FlowColumn& column : flow.columns) {
      if (column.parts[i].keys != head.parts[i].keys) {
        return fail(ErrorCode::Unsupported, "\"{}\" and \"{}\" have other numbers",
                    one_line(head.name), one_line(column.name));
      }
      exprs.push_back(column.parts[i].expr);
    }
    CKFS_TRY(const std::int64_t dim, whole(op.dim, with_shape(scope, exprs.front())));
    CKFS_TRY(head.parts[i].expr, op.kind == Kind::Concat ? TensorExpr::concat(exprs, dim)
                                                         : TensorExpr::interleave(exprs, dim));
  }
  flow.columns.resize(1);
  return flow;
}

/// The slices that Split or Deinterleave makes of one tensor.
Result<std::vector<TensorExpr>> slices_of(const Operation& op, const TensorExpr& expr,
                                          const Scope& scope) {
  const Scope here = with_shape(scope, expr);
  CKFS_TRY(const std::int64_t dim, whole(op.dim, here));
  std::vector<std::int64_t> numbers;
  for (const Expression& number : op.numbers) {
    CKFS_TRY(const std::int64_t value, whole(number, here));
    numbers.push_back(value);
  }
  if (op.kind == Kind::Split && !op.sizes) return expr.split(dim, numbers[0]);
  if (dim < 0 || dim >= static_cast<std::int64_t>(expr.shape().size())) {
    return fail(ErrorCode::InvalidArgument, "no dimension {} in a shape of {}", dim,
                expr.shape().size());
  }
  const std::int64_t extent = expr.shape()[static_cast<std::size_t>(dim)];
  std::vector<TensorExpr> slices;
  if (op.kind == Kind::Deinterleave) {
    const std::int64_t parts = numbers[0];
    if (parts < 1 || parts > static_cast<std::int64_t>(kMaxNumbers) || extent % parts != 0) {
      return fail(ErrorCode::InvalidArgument, "deinterleave of {} elements into {}", extent, parts);
    }
    for (std::int64_t i = 0; i < parts; ++i) {
      CKFS_TRY(TensorExpr slice, expr.slice(dim, i, extent / parts, parts));
      slices.push_back(std::move(slice));
    }
    return slices;
  }
  std::int64_t begin = 0;
  for (const std::int64_t size : numbers) {
    if (size < 0 || size > extent - begin) {
      return fail(ErrorCode::InvalidArgument, "split: sizes are more than the {} elements", extent);
    }
    CKFS_TRY(TensorExpr slice, expr.slice(dim, begin, size));
    slices.push_back(std::move(slice));
    begin += size;
  }
  if (begin != extent) {
    return fail(ErrorCode::InvalidArgument, "split: sizes are {} of {} elements", begin, extent);
  }
  return slices;
}

Result<Flow> split(const Operation& op, const Flow& flow, const Scope& scope) {
  Flow result{.columns = {}, .exactness = flow.exactness, .taken = flow.taken};
  std::size_t parts = 0;
  for (const FlowColumn& column : flow.columns) {
    std::vector<FlowColumn> made;
    for (const FlowPart& part : column.parts) {
      CKFS_TRY(std::vector<TensorExpr> slices, slices_of(op, part.expr, scope));
      parts += slices.size();
      if (parts > kMaxParts) return too_many_parts();
      if (!made.empty() && made.size() != slices.size()) {
        return fail(ErrorCode::Unsupported, "one tensor has {} parts, another {}", made.size(),
                    slices.size());
      }
      made.resize(slices.size(), {column.name, {}});
      for (std::size_t i = 0; i < slices.size(); ++i) {
        made[i].parts.push_back({part.keys, std::move(slices[i])});
      }
    }
    std::ranges::move(made, std::back_inserter(result.columns));
  }
  return result;
}

/// The dtype that NumPy and JAX give to an array with values of both.
DType promoted(DType a, DType b) {
  if (a == b || !is_castable_float(a) || !is_castable_float(b)) return a;
  if (bits(a) == bits(b)) return DType::F32;  // F16 and BF16
  return bits(a) > bits(b) ? a : b;
}

/// What a cast leaves of values.
Exactness exactness_of_cast(DType from, DType to) {
  const bool is_cast = (is_castable_float(from) || is_integer(from)) && is_castable_float(to);
  return from == to || !is_cast ? Exactness::BitExact : plain_encoding(from).exactness(to);
}

/// How exact the values of a tensor are after an operation; the bits of NaN do not count.
Exactness exactness_after(const Operation& op, const TensorExpr& before, const Scope& scope) {
  switch (op.kind) {
    case Kind::Cast:
      return exactness_of_cast(before.dtype(), op.dtype);
    case Kind::Multiply:
    case Kind::Add: {
      const Result<double> operand = op.operand.evaluate(with_shape(scope, before));
      if (operand && op.kind == Kind::Multiply && *operand == 1) return Exactness::BitExact;
      // The sign of zero may change.
      return operand && op.kind == Kind::Add && *operand == 0 ? Exactness::Exact : Exactness::Lossy;
    }
    case Kind::FlushSubnormals:
      return Exactness::Lossy;
    default:
      return Exactness::BitExact;
  }
}

/// The dtype that a view gives to all floats; nullopt: they keep theirs.
std::optional<DType> view_dtype(const ConfigNumbers* config) {
  const std::optional<std::string> name =
      config == nullptr ? std::nullopt : config->text("view.dtype");
  return name ? parse_dtype(*name) : std::nullopt;
}

Result<Flow> promote(Flow flow) {
  DType common = flow.columns.front().parts.front().expr.dtype();
  for (const FlowColumn& column : flow.columns) {
    for (const FlowPart& part : column.parts) common = promoted(common, part.expr.dtype());
  }
  for (FlowColumn& column : flow.columns) {
    for (FlowPart& part : column.parts) {
      flow.exactness = std::max(flow.exactness, exactness_of_cast(part.expr.dtype(), common));
      CKFS_TRY(part.expr, part.expr.cast(common));
    }
  }
  return flow;
}

/// The names of the dimensions after the operation; `before` is the first tensor. Empty: not known.
Result<std::vector<std::string>> axes_after(const Operation& op, std::vector<std::string> axes,
                                            const TensorExpr& before, const Scope& scope) {
  const Scope here = with_shape(scope, before);
  const auto rank = static_cast<std::int64_t>(axes.size());
  switch (op.kind) {
    case Kind::Reshape:
      return std::vector<std::string>();
    case Kind::Fill:
      return op.sizes ? std::vector<std::string>() : axes;
    case Kind::Stack:
    case Kind::Unstack: {
      CKFS_TRY(const std::int64_t dim, whole(op.dim, here));
      // The dimension may depend on the tensor, and another one may have come first.
      if (dim < 0 || dim > rank - (op.kind == Kind::Stack ? 0 : 1)) {
        return std::vector<std::string>();
      }
      if (op.kind == Kind::Stack) {
        axes.insert(axes.begin() + dim, std::string());
      } else {
        axes.erase(axes.begin() + dim);
      }
      return axes;
    }
    case Kind::Transpose: {
      std::vector<std::string> turned;
      for (const Expression& number : op.numbers) {
        CKFS_TRY(const std::int64_t from, whole(number, here));
        if (from < 0 || from >= rank) return std::vector<std::string>();
        turned.push_back(axes[static_cast<std::size_t>(from)]);
      }
      return turned;
    }
    default:
      return axes;
  }
}

/// The operations that make one tensor of one.
Result<TensorExpr> run_on_one(const Operation& op, const TensorExpr& expr, const Scope& scope) {
  const Scope here = with_shape(scope, expr);
  std::vector<std::int64_t> numbers;
  for (const Expression& number : op.numbers) {
    if (op.kind == Kind::Shape && scope.config != nullptr && scope.config->is_open() &&
        numbers.size() < expr.shape().size() && !number.unknowns(*scope.config).empty()) {
      numbers.push_back(expr.shape()[numbers.size()]);
      continue;
    }
    CKFS_TRY(const std::int64_t value, whole(number, here));
    numbers.push_back(value);
  }
  switch (op.kind) {
    case Kind::Transpose:
      return expr.transpose(numbers);
    case Kind::Reshape: {
      const auto open = std::ranges::find(numbers, -1);
      if (open != numbers.end()) {
        std::int64_t known = 1;
        for (auto number = numbers.begin(); number != numbers.end(); ++number) {
          if (number == open) continue;
          if (*number <= 0 || *number > expr.numel() / std::max<std::int64_t>(known, 1)) {
            return fail(ErrorCode::InvalidArgument, "reshape {} to {}: no whole number fits -1",
                        shape_text(expr.shape()), shape_text(numbers));
          }
          known *= *number;
        }
        *open = expr.numel() / known;
      }
      return expr.reshape(numbers);
    }
    case Kind::Slice: {
      CKFS_TRY(const std::int64_t dim, whole(op.dim, here));
      if (numbers[1] < 0 && dim >= 0 && dim < static_cast<std::int64_t>(expr.shape().size()) &&
          numbers[2] > 0) {
        const std::int64_t extent = expr.shape()[static_cast<std::size_t>(dim)];
        numbers[1] = std::max<std::int64_t>((extent - numbers[0] + numbers[2] - 1) / numbers[2], 0);
      }
      return expr.slice(dim, numbers[0], numbers[1], numbers[2]);
    }
    case Kind::Pad: {
      CKFS_TRY(const std::int64_t dim, whole(op.dim, here));
      if (!op.sizes) return expr.pad(dim, numbers[0], numbers[1]);
      if (dim < 0 || dim >= static_cast<std::int64_t>(expr.shape().size())) {
        return fail(ErrorCode::InvalidArgument, "pad: no dimension {} in a shape of {}", dim,
                    expr.shape().size());
      }
      const std::int64_t extent = expr.shape()[static_cast<std::size_t>(dim)];
      if (numbers[0] < extent) {
        return fail(ErrorCode::InvalidArgument, "pad: {} elements become {}", extent, numbers[0]);
      }
      return expr.pad(dim, 0, numbers[0] - extent);
    }
    case Kind::Shape:
      if (!std::ranges::equal(numbers, expr.shape())) {
        return fail(ErrorCode::Unsupported, "has shape {} where it must have {}",
                    shape_text(expr.shape()), shape_text(numbers));
      }
      return expr;
    case Kind::Cast:
      return op.integers && is_integer(expr.dtype()) ? expr.integers_as(op.dtype)
                                                     : expr.cast(op.dtype);
    case Kind::Fill: {
      CKFS_TRY(const double value, op.operand.evaluate(here));
      const DType dtype = op.other == Operation::Other::Taken ? expr.dtype() : op.dtype;
      if (!op.sizes) return TensorExpr::filled(dtype, expr.shape(), value);
      return TensorExpr::filled(dtype, numbers, value);
    }
    case Kind::Multiply:
    case Kind::Add: {
      CKFS_TRY(const double operand, op.operand.evaluate(here));
      return expr.then(
          {op.kind == Kind::Add ? Step::Kind::Add : Step::Kind::Multiply, expr.dtype(), operand});
    }
    case Kind::FlushSubnormals:
      return expr.then({Step::Kind::FlushSubnormals, expr.dtype(), 0});
    default:
      CKFS_CHECK(op.kind == Kind::CanonicalNan);
      return expr.then({Step::Kind::CanonicalNan, expr.dtype(), 0});
  }
}

}  // namespace

Result<Flow> Operation::run(Flow flow, const Scope& scope) const {
  if (flow.axes.empty() || flow.columns.front().parts.empty()) {
    return run_on(std::move(flow), scope);
  }
  const TensorExpr before = flow.columns.front().parts.front().expr;
  std::vector<std::string> axes = std::move(flow.axes);
  CKFS_TRY(Flow after, run_on(std::move(flow), scope));
  CKFS_TRY(after.axes, axes_after(*this, std::move(axes), before, scope));
  return after;
}

Result<Flow> Operation::run_on(Flow flow, const Scope& scope) const {
  switch (kind) {
    case Kind::Stack:
    case Kind::ConcatOver:
      return join_key(*this, std::move(flow), scope);
    case Kind::Unstack:
      return unstack(*this, std::move(flow), scope);
    case Kind::Concat:
    case Kind::Interleave:
      return join_columns(*this, std::move(flow), scope);
    case Kind::Split:
    case Kind::Deinterleave:
      return split(*this, flow, scope);
    case Kind::Promote:
      return promote(std::move(flow));
    case Kind::Cast:
      if (other != Other::None) {
        Operation back = *this;
        back.other = Other::None;
        back.dtype = flow.taken;
        if (other == Other::View) {
          const std::optional<DType> view = view_dtype(scope.config);
          if (!view) return flow;
          back.dtype = *view;
        }
        return back.run_on(std::move(flow), scope);
      }
      break;
    case Kind::Fill:
      flow.exactness = Exactness::BitExact;  // whatever was taken
      break;
    default:
      break;
  }
  for (FlowColumn& column : flow.columns) {
    for (FlowPart& part : column.parts) {
      flow.exactness = std::max(flow.exactness, exactness_after(*this, part.expr, scope));
      CKFS_TRY(part.expr, run_on_one(*this, part.expr, scope));
    }
  }
  return flow;
}

}  // namespace ckfs
