// Rules the other way round.
//
// A rule is undone directly, not turned into another rule first. A number in a name may be an
// expression ({i - $first_k_dense_replace}, i % 6), and its value is found by trying, once for all
// tensors, which names the rule would have given. The shapes that inverses need come from running
// the rule forward on tensors of zeros, so that every array must have the shape that the rules
// would give it. The shape at the start of that run follows from the array where the operations
// leave no choice, and is compared with the rule's `shape`: two numbers that should be equal, and
// config.json may not have the one.
#include <algorithm>
#include <map>
#include <ranges>
#include <set>

#include "base/name_hash.h"
#include "base/text.h"
#include "tensor/shape.h"
#include "view/recipes/recipe.h"

namespace ckfs {
namespace {

using Kind = Operation::Kind;
using Values = std::vector<std::optional<double>>;

// Numbers that are tried for what a name does not say as it is: layers.
constexpr int kMaxTried = 4096;

// The most tensors on the way: a few bytes of a source can ask for any number of them. The largest
// models have 70,000.
constexpr std::size_t kMaxUndone = std::size_t{1} << 18;

/// Whether it changes values alone.
bool is_of_values(const Operation& operation) {
  switch (operation.kind) {
    case Kind::Promote:
    case Kind::Cast:
    case Kind::Multiply:
    case Kind::Add:
    case Kind::FlushSubnormals:
    case Kind::CanonicalNan:
      return true;
    default:
      return false;
  }
}

std::vector<std::int64_t> dims(const TensorExpr& expr) {
  return {expr.shape().begin(), expr.shape().end()};
}

/// The tensors that one group of a rule left.
struct Left {
  std::vector<std::uint32_t> tensors;  // one for each name in `give`
  Captured captured;                   // by the pattern of the first
};

class RuleUndo {
 public:
  /// `facts` are added to: what the rule shows of config.json, does to values, leaves out.
  RuleUndo(const Rule& rule, Undone& facts, TensorList list)
      : rule_(rule), config_(facts.config), list_(std::move(list)), facts_(facts) {}

  Result<TensorList> run() {
    if (rule_.kind == Rule::Kind::Select || rule_.kind == Rule::Kind::Drop || rule_.back.skip) {
      return std::move(list_);
    }
    if (rule_.kind != Rule::Kind::Make) return check();
    std::set<std::string> unknown;
    bool is_left_out = false;  // whatever the unknown numbers are
    for (const Condition& condition : rule_.when) {
      const std::set<std::string> asked = condition.unknowns(config_);
      // A condition may hold by a number's default, which says nothing of a tree.
      is_left_out = is_left_out || (asked.empty() && !condition.holds(scope_of({})).value_or(true));
      unknown.insert(asked.begin(), asked.end());
    }
    if (unknown.empty()) CKFS_TRY_VOID(holds(rule_.when));
    CKFS_TRY(const bool back, holds(rule_.back.when));
    if (is_left_out || !back) return std::move(list_);
    if (rule_.copy && !rule_.back.drop) return no_way_back("it copies");
    CKFS_TRY_VOID(prepare());
    CKFS_TRY_VOID(collect());
    for (const std::string& path : unknown) learn_switch(path);
    if (left_.empty()) {
      if (rule_.optional || !unknown.empty()) return std::move(list_);
      return fail(ErrorCode::Unsupported, "{}:{}: no tensor fits {}", *rule_.file, rule_.line,
                  quote(rule_.give.front().text()));
    }
    for (const Left& left : left_) {
      const Result<void> done = rule_.back.drop ? leave_out(left) : undo(left);
      if (!done) return at(left, done.error());
    }
    return merge();
  }

 private:
  Failure at(const Left& left, const Error& error) const {
    return fail(ErrorCode::Unsupported, "{}:{}: \"{}\": {}", *rule_.file, rule_.line,
                one_line(list_.tensors[left.tensors.front()].name), error.message());
  }
  Failure no_way_back(std::string_view why) const {
    return fail(ErrorCode::Unsupported, "{}:{}: the rule has no way back: {}", *rule_.file,
                rule_.line, why);
  }
  static Failure too_many() {
    return fail(ErrorCode::Unsupported, "more than {} tensors on the way back", kMaxUndone);
  }
  Scope scope_of(const Values& values,
                 std::optional<std::span<const std::int64_t>> shape = {}) const {
    return {.config = &config_, .captures = values, .shape = shape};
  }

  /// Of a rule that only checks.
  Result<TensorList> check() {
    if (rule_.count) learn_count();
    return apply_rule(rule_, config_, std::move(list_));
  }

  /// How many values of one capture there are, where config.json does not say how many there must
  /// be.
  void learn_count() {
    Captured captured(rule_.captures);
    double count = 0;
    for (const ModelTensor& tensor : list_.tensors) {
      for (const Pattern& pattern : rule_.patterns) {
        if (!pattern.match(tensor.name, captured)) continue;
        count = std::max(count, number_of(captured[rule_.over]) + 1);
      }
    }
    learn(*rule_.count, count, {});
  }

  /// Learns a number in a condition of the rule, once it is known whether the rule was done: of 0
  /// and 1, the one that gives the condition that result, unless both do. Larger numbers are
  /// learned from shapes.
  void learn_switch(const std::string& path) {
    if (config_.knows(path)) return;
    const auto is_done_with = [&](int number) {
      ConfigNumbers tried = config_;
      tried.set(path, number);
      return std::ranges::all_of(rule_.when, [&](const Condition& condition) {
        return condition.holds({.config = &tried, .captures = {}}).value_or(false);
      });
    };
    if (is_done_with(0) == is_done_with(1)) return;
    const int number = is_done_with(0) == left_.empty() ? 1 : 0;
    if (number == 0 || left_.empty()) config_.set(path, number);
  }

  /// Learns the number that makes `expression` the extent `value`, if config.json may not have it.
  void learn(const Expression& expression, double value, const Scope& scope) {
    const auto found = expression.solve(value, {.config = &config_, .captures = scope.captures});
    if (found) config_.set(found->first, found->second);
  }

  /// Compares a rule's extent with an array's, or learns a number from it.
  Result<void> equal(const Expression& expression, std::int64_t extent, const Scope& scope) {
    learn(expression, static_cast<double>(extent), scope);
    if (!expression.unknowns(config_).empty()) return {};
    const Result<std::int64_t> wanted = expression.evaluate_whole(scope);
    // A number that config.json does not have comes from the array; an expression over the shape is
    // checked by the forward run.
    if (!wanted || *wanted == extent) return {};
    return fail(ErrorCode::Unsupported, "{} is {} here and {} by {}", expression.text(), extent,
                *wanted, config_.is_open() ? "other arrays" : "config.json");
  }

  Result<bool> holds(const std::vector<Condition>& conditions) const {
    for (const Condition& condition : conditions) {
      const Result<bool> one = condition.holds(scope_of({}));
      if (!one) {
        return fail(ErrorCode::Unsupported, "{}:{}: {}", *rule_.file, rule_.line,
                    one.error().message());
      }
      if (!*one) return false;
    }
    return true;
  }

  /// The patterns of the rule's results, and how to find the numbers that are not in them.
  Result<void> prepare() {
    for (const Template& name : rule_.give) {
      auto one = name.reversed(rule_.patterns.front(), rule_.captures);
      if (!one) return no_way_back(one.error().message());
      names_given_.push_back(std::move(*one));
    }
    for (const Template::Reversed& name : names_given_) {
      if (!have_same_numbers(name, names_given_.front())) {
        return no_way_back("its names have different numbers");
      }
    }
    for (const auto& key : rule_.keys) {
      const auto variable = static_cast<std::size_t>(std::ranges::find(rule_.variables, key) -
                                                     rule_.variables.begin());
      key_variables_.push_back(variable);
    }
    for (std::size_t i = 0; i < rule_.captures; ++i) {
      if (names_given_.front().pattern.has(i)) continue;
      if (std::ranges::find(key_variables_, i) != key_variables_.end()) continue;
      if (free_ || !rule_.patterns.front().is_number(i)) {
        return no_way_back(fmt::format("{} is in no name", rule_.variables[i]));
      }
      free_ = i;
    }
    const bool computes = std::ranges::any_of(
        names_given_, [](const Template::Reversed& name) { return !name.computed.empty(); });
    if (!free_ && computes) return no_way_back("a name has a number that matches nothing");
    if (free_) try_numbers();
    return {};
  }

  bool have_same_numbers(const Template::Reversed& a, const Template::Reversed& b) const {
    for (std::size_t i = 0; i < rule_.captures; ++i) {
      if (a.pattern.has(i) != b.pattern.has(i)) return false;
    }
    return std::ranges::equal(a.computed, b.computed, {}, &Expression::text, &Expression::text);
  }

  /// The rule's name for a tensor, for each value of the one number that is not in the names.
  void try_numbers() {
    Values values(rule_.variables.size());
    for (int number = 0; number < kMaxTried; ++number) {
      values[*free_] = number;
      bool fits = true;
      for (const Rule::Let& let : rule_.lets) {
        const Result<double> value = let.value.evaluate(scope_of(values));
        fits = fits && value.has_value();
        if (value) values[let.variable] = *value;
      }
      for (const Condition& condition : rule_.where) {
        // One on other captures or on the shape is held when all are known.
        fits = fits && condition.holds(scope_of(values)).value_or(true);
      }
      std::vector<double> seen;
      for (const Expression& expression : names_given_.front().computed) {
        const Result<double> value = expression.evaluate(scope_of(values));
        fits = fits && value.has_value();
        seen.push_back(value.value_or(0));
      }
      for (const std::size_t variable : key_variables_)
        seen.push_back(values[variable].value_or(0));
      if (!fits) continue;
      const auto [place, is_new] = tried_.emplace(std::move(seen), number);
      if (!is_new) place->second = kAmbiguous;
    }
  }

  Result<void> collect() {
    NameMap<std::size_t> known;
    std::string key;
    taken_.assign(list_.tensors.size(), false);
    for (std::uint32_t i = 0; i < list_.tensors.size(); ++i) {
      for (std::size_t column = 0; column < names_given_.size(); ++column) {
        const auto& [pattern, computed] = names_given_[column];
        Captured captured(rule_.captures + computed.size());
        if (!pattern.match(list_.tensors[i].name, captured)) continue;
        if (!may_be_given(captured)) continue;
        taken_[i] = true;
        key.clear();
        for (const std::string_view text : captured) {
          key += text;
          key += '\0';
        }
        const auto [place, is_new] = known.try_emplace(key, left_.size());
        if (is_new) {
          left_.push_back({std::vector<std::uint32_t>(names_given_.size(), ModelTensor::kNone),
                           std::move(captured)});
        }
        std::uint32_t& tensor = left_[place->second].tensors[column];
        if (tensor != ModelTensor::kNone) {
          return fail(ErrorCode::Unsupported, "{}:{}: {} is there twice on the way back",
                      *rule_.file, rule_.line, quote(list_.tensors[i].name));
        }
        tensor = i;
        break;
      }
    }
    for (const Left& left : left_) {
      const auto missing = std::ranges::find(left.tensors, ModelTensor::kNone);
      if (missing == left.tensors.end()) continue;
      const auto there = std::ranges::find_if(
          left.tensors, [](std::uint32_t tensor) { return tensor != ModelTensor::kNone; });
      return fail(
          ErrorCode::Unsupported, "{}:{}: \"{}\": no tensor matches {} in this group", *rule_.file,
          rule_.line, one_line(list_.tensors[*there].name),
          quote(rule_.give[static_cast<std::size_t>(missing - left.tensors.begin())].text()));
    }
    return {};
  }

  Values values_of(const Captured& captured) const {
    Values values(rule_.variables.size());
    for (std::size_t i = 0; i < rule_.captures; ++i) {
      if (!names_given_.front().pattern.is_number(i)) continue;
      values[i] = number_of(captured[i]);
    }
    return values;
  }
  static double number_of(std::string_view digits) {
    double number = 0;
    for (const char digit : digits) number = number * 10 + (digit - '0');
    return number;
  }

  /// Whether the rule gives such a name, as far as that is known before it is undone.
  bool may_be_given(const Captured& captured) const {
    if (!key_variables_.empty()) return true;
    Values values = values_of(captured);
    const Result<void> solved = solve(captured, {}, values);
    return solved && fits(values).value_or(true);
  }

  /// Completes `values`. Errors: Unsupported (no number gives such a name; several do).
  Result<void> solve(const Captured& captured, const std::array<std::int32_t, kMaxKeys>& keys,
                     Values& values) const {
    for (std::size_t key = 0; key < key_variables_.size(); ++key) {
      if (key_variables_[key] < rule_.captures) values[key_variables_[key]] = keys[key];
    }
    if (free_) {
      std::vector<double> seen;
      for (std::size_t i = rule_.captures; i < captured.size(); ++i) {
        seen.push_back(number_of(captured[i]));
      }
      for (std::size_t key = 0; key < key_variables_.size(); ++key) seen.push_back(keys[key]);
      const auto found = tried_.find(seen);
      if (found == tried_.end() || found->second == kAmbiguous) {
        return fail(ErrorCode::Unsupported, "{} value of {} below {} gives this name",
                    found == tried_.end() ? "no" : "more than one", rule_.variables[*free_],
                    kMaxTried);
      }
      values[*free_] = found->second;
    }
    for (const Rule::Let& let : rule_.lets) {
      CKFS_TRY(values[let.variable], let.value.evaluate(scope_of(values)));
    }
    return {};
  }

  Result<bool> fits(const Values& values,
                    std::optional<std::span<const std::int64_t>> shape = {}) const {
    for (const Condition& condition : rule_.where) {
      CKFS_TRY(const bool one, condition.holds(scope_of(values, shape)));
      if (!one) return false;
    }
    return true;
  }

  /// The shape that the group's tensors have before operation `first`, a `shape`, as far as the
  /// operations behind it leave no choice; each extent of it, and each that a reshape or pad names,
  /// is held to what the rule says of it.
  Result<std::vector<std::int64_t>> shape_at(std::size_t first, std::vector<std::int64_t> shape,
                                             const Scope& scope) {
    const Operation& said = rule_.operations[first];
    bool known = true;
    for (std::size_t i = rule_.operations.size(); known && --i > first;) {
      const Operation& operation = rule_.operations[i];
      if (is_of_values(operation)) continue;
      if (operation.kind == Kind::Transpose) {
        CKFS_TRY(shape, before_transpose(operation, shape, scope));
      } else if (operation.kind == Kind::Reshape) {
        CKFS_TRY_VOID(hold_reshape(operation, shape, scope));
        auto before = before_reshape(operation, shape, said.numbers.size());
        known = before.has_value();
        if (before) shape = std::move(*before);
      } else {
        const Result<std::int64_t> dim = operation.dim.evaluate_whole(scope);
        known = dim && *dim >= 0 && static_cast<std::size_t>(*dim) < shape.size();
        if (!known) break;
        std::int64_t& extent = shape[static_cast<std::size_t>(*dim)];
        const bool is_equal_split = (operation.kind == Kind::Split && !operation.sizes) ||
                                    operation.kind == Kind::Deinterleave;
        if (operation.kind == Kind::Pad && operation.sizes) {
          CKFS_TRY_VOID(equal(operation.numbers.front(), extent, scope));
        }
        known =
            is_equal_split &&
            !__builtin_mul_overflow(extent, static_cast<std::int64_t>(rule_.give.size()), &extent);
      }
    }
    known = known && shape.size() == said.numbers.size();
    std::vector<std::int64_t> result;
    for (std::size_t d = 0; d < said.numbers.size(); ++d) {
      if (known) {
        CKFS_TRY_VOID(equal(said.numbers[d], shape[d], scope));
        result.push_back(shape[d]);
        continue;
      }
      CKFS_TRY(const std::int64_t extent, said.numbers[d].evaluate_whole(scope));
      result.push_back(extent);
    }
    return result;
  }

  Failure is_not_given(std::span<const std::int64_t> shape, const Operation& operation) const {
    return fail(ErrorCode::Unsupported,
                "has shape {}, which the operation in line {} does not give", shape_text(shape),
                operation.line);
  }

  Result<std::vector<std::int64_t>> before_transpose(const Operation& operation,
                                                     std::span<const std::int64_t> shape,
                                                     const Scope& scope) const {
    std::vector<std::int64_t> before(shape.size());
    if (operation.numbers.size() != shape.size()) return is_not_given(shape, operation);
    for (std::size_t d = 0; d < shape.size(); ++d) {
      CKFS_TRY(const std::int64_t from, operation.numbers[d].evaluate_whole(scope));
      if (from < 0 || static_cast<std::size_t>(from) >= shape.size()) {
        return is_not_given(shape, operation);
      }
      before[static_cast<std::size_t>(from)] = shape[d];
    }
    return before;
  }

  Result<void> hold_reshape(const Operation& operation, std::span<const std::int64_t> shape,
                            const Scope& scope) {
    if (operation.numbers.size() != shape.size()) return is_not_given(shape, operation);
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const Expression& number = operation.numbers[d];
      if (number.is_dim()) continue;
      const Result<std::int64_t> value = number.evaluate_whole(scope);
      if (value && *value == -1) continue;
      CKFS_TRY_VOID(equal(number, shape[d], scope));
    }
    return {};
  }

  /// Of a reshape that keeps all dimensions of `rank` but one, which becomes the others.
  static std::optional<std::vector<std::int64_t>> before_reshape(
      const Operation& operation, std::span<const std::int64_t> shape, std::size_t rank) {
    std::vector<std::int64_t> before(rank, 0);
    std::vector<bool> kept(rank, false);
    std::int64_t product = 1;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const std::optional<std::size_t> dim = operation.numbers[d].is_dim();
      if (dim && *dim < rank && !kept[*dim]) {
        before[*dim] = shape[d];
        kept[*dim] = true;
      } else if (__builtin_mul_overflow(product, shape[d], &product)) {
        return std::nullopt;
      }
    }
    const auto joined = std::ranges::find(kept, false);
    if (std::ranges::count(kept, false) != 1) return std::nullopt;
    before[static_cast<std::size_t>(joined - kept.begin())] = product;
    return before;
  }

  std::vector<Operation>::const_iterator find_shape() const {
    return std::ranges::find(rule_.operations, Kind::Shape, &Operation::kind);
  }

  bool has(Kind kind) const {
    return std::ranges::find(rule_.operations, kind, &Operation::kind) != rule_.operations.end();
  }

  /// Sets `before` of the operations up to the rule's `shape`, of all where it has none, to as many
  /// columns as there are before each, all of `shape`, or of the shapes of the group's tensors
  /// where no operation moves elements any more; refuses what has to know more.
  Result<void> count_columns(const Left& left, const std::vector<std::int64_t>& shape,
                             const Scope& scope, std::vector<FlowShape>& before) const {
    const auto end = static_cast<std::size_t>(find_shape() - rule_.operations.begin());
    const bool has_shape = end < before.size();
    // Else the operations are run, and all shapes known.
    const bool is_run = !has_shape && has(Kind::Reshape);
    const auto moves = [&](std::size_t from) {
      return from < end &&
             !std::all_of(rule_.operations.begin() + static_cast<std::ptrdiff_t>(from),
                          find_shape(), is_of_values);
    };
    std::size_t columns = rule_.patterns.size();  // 0: not known
    for (std::size_t i = 0; i < before.size() && i <= end; ++i) {
      const Operation& operation = rule_.operations[i];
      before[i].shapes.assign(std::max<std::size_t>(columns, 1), shape);
      if (!has_shape && !moves(i)) {
        before[i].shapes.clear();
        for (const std::uint32_t tensor : left.tensors) {
          before[i].shapes.push_back(dims(list_.tensors[tensor].expr));
        }
      }
      const bool measures = is_of_values(operation) && operation.operand.needs_shape();
      const bool hides = operation.kind == Kind::Pad || operation.kind == Kind::Concat ||
                         (operation.kind == Kind::Reshape && has_shape && i < end) ||
                         (measures && moves(i + 1) && !is_run);
      const bool undoes = !rule_.back.operations;  // each operation, by its inverse
      const bool counts = operation.kind == Kind::Interleave || operation.kind == Kind::Split ||
                          operation.kind == Kind::Deinterleave;
      if (undoes && (hides || (counts && columns == 0))) {
        return fail(ErrorCode::Unsupported,
                    "the operation in line {} has no way back without a shape before it",
                    operation.line);
      }
      if (operation.kind == Kind::Concat || operation.kind == Kind::Interleave) columns = 1;
      if (operation.kind != Kind::Split && operation.kind != Kind::Deinterleave) continue;
      Result<std::int64_t> parts = static_cast<std::int64_t>(operation.numbers.size());
      if (!operation.sizes) parts = operation.numbers.front().evaluate_whole(scope);
      if (!parts || *parts < 1) columns = 0;
      if (columns == 0) continue;
      if (*parts > static_cast<std::int64_t>(kMaxUndone / columns)) return too_many();
      columns *= static_cast<std::size_t>(*parts);
    }
    return {};
  }

  /// The shapes that the group's tensors have before each operation, and the check that they lead
  /// to those that are there. Without a `shape` in the rule, the tensors are taken to have had the
  /// shape that they have.
  Result<std::vector<FlowShape>> shapes_before(const Left& left, const Scope& scope) {
    std::vector<FlowShape> before(rule_.operations.size());
    const auto first = find_shape();
    const bool has_shape = first != rule_.operations.end();
    const TensorExpr& head = list_.tensors[left.tensors.front()].expr;
    std::vector<std::int64_t> shape = dims(head);
    std::size_t begin = 0;
    if (has_shape) {
      begin = static_cast<std::size_t>(first - rule_.operations.begin());
      CKFS_TRY(shape, shape_at(begin, std::move(shape), scope));
    }
    CKFS_TRY_VOID(count_columns(left, shape, scope, before));
    if (!has_shape && !has(Kind::Reshape)) return before;
    Flow flow;
    CKFS_TRY(const TensorExpr zeros, TensorExpr::zeros(head.dtype(), shape));
    flow.columns.assign(before[begin].shapes.size(),
                        {rule_.patterns.front().text(), {{{}, zeros}}});
    for (std::size_t i = begin; i < rule_.operations.size(); ++i) {
      const Operation& operation = rule_.operations[i];
      before[i].shapes.clear();
      for (const FlowColumn& column : flow.columns) {
        before[i].shapes.push_back(dims(column.parts.front().expr));
      }
      if (is_of_values(operation) || operation.kind == Kind::Shape) continue;
      CKFS_TRY(flow, operation.run(std::move(flow), scope));
    }
    for (std::size_t i = 0; i < flow.columns.size() && i < left.tensors.size(); ++i) {
      const ModelTensor& tensor = list_.tensors[left.tensors[i]];
      const TensorExpr& wanted = flow.columns[i].parts.front().expr;
      if (std::ranges::equal(tensor.expr.shape(), wanted.shape())) continue;
      return fail(ErrorCode::Unsupported, "has shape {} where it must have {}",
                  shape_text(tensor.expr.shape()), shape_text(wanted.shape()));
    }
    return before;
  }

  /// Of results that nothing was made of: they go, if they have the shape that the rule gives.
  Result<void> leave_out(const Left& left) {
    const Scope scope = scope_of(values_of(left.captured));
    const auto fill = std::ranges::find_if(rule_.operations, [](const Operation& operation) {
      return operation.kind == Kind::Fill && operation.sizes;
    });
    const bool says_shape = fill != rule_.operations.end() &&
                            std::all_of(fill + 1, rule_.operations.end(), is_of_values);
    for (const std::uint32_t tensor : left.tensors) {
      const std::vector<std::int64_t> shape = dims(list_.tensors[tensor].expr);
      if (says_shape && fill->numbers.size() != shape.size()) return is_not_given(shape, *fill);
      for (std::size_t d = 0; says_shape && d < shape.size(); ++d) {
        CKFS_TRY_VOID(equal(fill->numbers[d], shape[d], scope));
      }
      if (facts_.left_out.count++ > 0) continue;
      const std::vector<Box> boxes = list_.tensors[tensor].expr.boxes(0, 1);
      if (!boxes.empty()) facts_.left_out.first = boxes.front().source;
    }
    return {};
  }

  Result<void> undo(const Left& left) {
    const Values known = values_of(left.captured);
    Flow flow;
    for (const std::uint32_t tensor : left.tensors) {
      flow.columns.push_back({list_.tensors[tensor].name, {{{}, list_.tensors[tensor].expr}}});
      flow.exactness = std::max(flow.exactness, list_.tensors[tensor].exactness);
    }
    flow.taken = flow.columns.front().parts.front().expr.dtype();
    const Scope scope = scope_of(known);
    std::vector<FlowShape> before;
    if (!rule_.back.operations || find_shape() != rule_.operations.end()) {
      CKFS_TRY(before, shapes_before(left, scope));
    }
    if (rule_.back.operations) {
      for (const Operation& operation : *rule_.back.operations) {
        facts_.does_values = facts_.does_values || is_of_values(operation);
        CKFS_TRY(flow, operation.run(std::move(flow), scope));
      }
    } else {
      for (std::size_t i = rule_.operations.size(); i-- > 0;) {
        const Operation& operation = rule_.operations[i];
        if (operation.kind == Kind::Cast || operation.kind == Kind::Promote ||
            operation.kind == Kind::Shape) {
          continue;
        }
        if (operation.kind == Kind::Stack) CKFS_TRY_VOID(hold_count(operation, flow, scope));
        const std::optional<Operation> inverse = operation.inverse(before[i], scope);
        if (!inverse) {
          return fail(ErrorCode::Unsupported, "the operation in line {} has no way back",
                      operation.line);
        }
        facts_.does_values = facts_.does_values || is_of_values(*inverse);
        CKFS_TRY(flow, inverse->run(std::move(flow), scope));
      }
    }
    if (flow.columns.size() != rule_.patterns.size()) {
      return fail(ErrorCode::Unsupported, "{} tensors on the way back for {} names in take",
                  flow.columns.size(), rule_.patterns.size());
    }
    const std::size_t first = made_.size();
    for (std::size_t i = 0; i < flow.columns.size(); ++i) {
      for (FlowPart& part : flow.columns[i].parts) {
        CKFS_TRY_VOID(give(rule_.patterns[i], part, left, known, flow.exactness));
      }
    }
    const std::uint32_t place = *std::ranges::min_element(left.tensors);
    made_of_.emplace(place, std::pair(first, made_.size()));
    return {};
  }

  /// How many are stacked in an array.
  Result<void> hold_count(const Operation& operation, const Flow& flow, const Scope& scope) {
    const std::span<const std::int64_t> shape = flow.columns.front().parts.front().expr.shape();
    CKFS_TRY(const std::int64_t dim, operation.dim.evaluate_whole(scope));
    if (dim < 0 || static_cast<std::size_t>(dim) >= shape.size()) return {};
    const std::int64_t count = shape[static_cast<std::size_t>(dim)];
    // Before any of them is made.
    if (count > static_cast<std::int64_t>(kMaxUndone)) return too_many();
    if (!operation.count) return {};
    const Result<std::int64_t> any = operation.count->evaluate_whole(scope);
    if (any && *any < 0) return {};
    return equal(*operation.count, count, scope);
  }

  Result<void> give(const Pattern& pattern, FlowPart& part, const Left& left, const Values& known,
                    Exactness exactness) {
    Values values = known;
    CKFS_TRY_VOID(solve(left.captured, part.keys, values));
    CKFS_TRY(const bool fit, fits(values, part.expr.shape()));
    if (!fit) return fail(ErrorCode::Unsupported, "is not what this rule gives");
    if (made_.size() + list_.tensors.size() >= kMaxUndone) return too_many();
    Captured captured = left.captured;
    std::array<std::string, kMaxCaptures> texts;
    for (std::size_t i = 0; i < rule_.captures; ++i) {
      if (names_given_.front().pattern.has(i)) continue;
      texts[i] = fmt::format("{}", *values[i]);
      captured[i] = texts[i];
    }
    ModelTensor made = list_.tensors[left.tensors.front()];
    made.name = names_.emplace_back(pattern.fill(captured));
    if (made.name.size() > kMaxTensorName) {
      return fail(ErrorCode::Unsupported, "becomes a name of {} characters (limit {})",
                  made.name.size(), kMaxTensorName);
    }
    made.expr = std::move(part.expr);
    made.exactness = exactness;
    made.same_as = made.split = ModelTensor::kNone;
    made_.push_back(std::move(made));
    return {};
  }

  /// The tensors that stay and those that were made, in order.
  TensorList merge() {
    list_.names.splice(list_.names.end(), names_);
    std::vector<ModelTensor> merged;
    merged.reserve(list_.tensors.size() + made_.size());
    for (std::uint32_t i = 0; i < list_.tensors.size(); ++i) {
      if (!taken_[i]) merged.push_back(std::move(list_.tensors[i]));
      const auto group = made_of_.find(i);
      if (group == made_of_.end()) continue;
      for (std::size_t k = group->second.first; k < group->second.second; ++k) {
        merged.push_back(std::move(made_[k]));
      }
    }
    list_.tensors = std::move(merged);
    return std::move(list_);
  }

  static constexpr int kAmbiguous = -1;

  const Rule& rule_;
  ConfigNumbers& config_;
  TensorList list_;
  Undone& facts_;
  std::vector<Template::Reversed> names_given_;
  std::vector<std::size_t> key_variables_;
  std::optional<std::size_t> free_;  // a number that is in no name and no index
  std::map<std::vector<double>, int> tried_;
  std::vector<bool> taken_;
  std::vector<Left> left_;
  std::vector<ModelTensor> made_;
  std::map<std::uint32_t, std::pair<std::size_t, std::size_t>> made_of_;  // by position: of made_
  std::list<std::string> names_;
};

}  // namespace

Result<Undone> undo_rules(const RuleList& rules, ConfigNumbers config, TensorList list) {
  config.leave_open();
  Undone facts{.list = {}, .config = std::move(config)};
  for (const auto& rule : std::views::reverse(rules.rules)) {
    CKFS_TRY(list, RuleUndo(rule, facts, std::move(list)).run());
  }
  std::list<std::string> names;
  std::vector<std::string_view> sorted;
  sorted.reserve(list.tensors.size());
  for (ModelTensor& tensor : list.tensors) {
    tensor.name = sorted.emplace_back(names.emplace_back(tensor.name));
  }
  std::ranges::sort(sorted);
  if (const auto twice = std::ranges::adjacent_find(sorted); twice != sorted.end()) {
    return fail(ErrorCode::Unsupported, "{}: \"{}\" is made twice on the way back", rules.file,
                one_line(*twice));
  }
  list.names = std::move(names);
  facts.list = std::move(list);
  return facts;
}

bool has_results(const Rule& rule, const TensorList& list) {
  if (rule.kind != Rule::Kind::Make || rule.copy || rule.back.skip) return false;
  return std::ranges::any_of(rule.give, [&](const Template& name) {
    const auto reversed = name.reversed(rule.patterns.front(), rule.captures);
    if (!reversed) return false;
    Captured captured(rule.captures + reversed->computed.size());
    return std::ranges::any_of(list.tensors, [&](const ModelTensor& tensor) {
      return reversed->pattern.match(tensor.name, captured);
    });
  });
}

bool has_results(const RuleList& rules, const TensorList& list) {
  return std::ranges::any_of(rules.rules,
                             [&](const Rule& rule) { return has_results(rule, list); });
}

}  // namespace ckfs
