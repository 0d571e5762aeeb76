// Rules are done one after another rather than all on the names of the source: a chain of renames
// then reads naturally, and a list of rules is inverted from its end. The cost is a look at each
// name for each rule. There may be 200,000 names, so that look compares just the pattern's two ends
// in nearly all cases, and a group of tensors is remembered by numbers.
#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

#include "base/name_hash.h"
#include "base/text.h"
#include "view/recipes/recipe.h"

namespace ckfs {
namespace {

using Values = std::vector<std::optional<double>>;

/// What a rule gives: where its first part stood, and the tensor.
struct Made {
  std::uint32_t position = 0;
  ModelTensor tensor;
};

/// A tensor that a rule takes: which, by which pattern, and the values that it is stacked by.
struct Taken {
  std::uint32_t tensor = 0;
  std::uint32_t column = 0;
  std::array<std::int32_t, kMaxKeys> keys{};
};

struct TakenGroup {
  Captured captured;  // of its first tensor
  Values values;
  std::vector<Taken> taken;
};

class RuleRun {
 public:
  RuleRun(const Rule& rule, const ConfigNumbers& config, TensorList list)
      : rule_(rule), file_(*rule.file), config_(config), list_(std::move(list)) {}

  Result<TensorList> run() {
    for (const Condition& condition : rule_.when) {
      const Result<bool> holds = condition.holds({.config = &config_, .captures = {}});
      if (!holds) {
        return fail(ErrorCode::Unsupported, "{}:{}: {}", file_, rule_.line,
                    holds.error().message());
      }
      if (!*holds) return std::move(list_);
    }
    if (rule_.kind == Rule::Kind::Expect && rule_.count) return count_values();
    if (rule_.kind != Rule::Kind::Make) return filter();
    CKFS_TRY_VOID(collect());
    if (found_ == 0) {
      if (rule_.optional) return std::move(list_);
      return nothing_fits();
    }
    for (const TakenGroup& group : groups_) CKFS_TRY_VOID(make(group));
    return merge();
  }

 private:
  Failure at(std::string_view tensor, const Error& error, std::uint32_t line) const {
    return fail(ErrorCode::Unsupported, "{}:{}: \"{}\": {}", file_, line, one_line(tensor),
                error.message());
  }
  Failure nothing_fits() const {
    return fail(ErrorCode::Unsupported, "{}:{}: no tensor fits {}", file_, rule_.line,
                quote(rule_.patterns.front().text()));
  }

  Scope scope_of(const Values& values,
                 std::optional<std::span<const std::int64_t>> shape = {}) const {
    return {.config = &config_, .captures = values, .shape = shape};
  }

  /// The captures that are numbers, and what follows from them by `let`.
  Result<Values> values_of(const ModelTensor& tensor, const Captured& captured,
                           const Pattern& pattern) const {
    Values values(rule_.variables.size());
    for (std::size_t i = 0; i < rule_.captures; ++i) {
      if (!pattern.is_number(i)) continue;
      std::int64_t number = 0;
      for (const char digit : captured[i]) number = number * 10 + (digit - '0');
      values[i] = static_cast<double>(number);
    }
    for (const Rule::Let& let : rule_.lets) {
      CKFS_TRY(values[let.variable], let.value.evaluate(scope_of(values, tensor.expr.shape())));
    }
    return values;
  }

  /// Which pattern takes the tensor, if any; `captured` and `values` are then its.
  struct Match {
    std::size_t column = 0;
    Values values;
  };
  Result<std::optional<Match>> match(const ModelTensor& tensor, Captured& captured) const {
    for (std::size_t column = 0; column < rule_.patterns.size(); ++column) {
      const Pattern& pattern = rule_.patterns[column];
      if (!pattern.match(tensor.name, captured)) continue;
      Result<Values> values = values_of(tensor, captured, pattern);
      if (!values) return at(tensor.name, values.error(), rule_.line);
      bool holds = true;
      for (const Condition& condition : rule_.where) {
        const Result<bool> one = condition.holds(scope_of(*values, tensor.expr.shape()));
        if (!one) return at(tensor.name, one.error(), rule_.line);
        holds = holds && *one;
      }
      if (holds) return Match{column, std::move(*values)};
    }
    return std::nullopt;
  }

  Result<TensorList> filter() {
    Captured captured(rule_.captures);
    std::size_t found = 0;
    std::vector<bool> keep(list_.tensors.size(), true);
    for (std::size_t i = 0; i < list_.tensors.size(); ++i) {
      CKFS_TRY(const std::optional<Match> one, match(list_.tensors[i], captured));
      found += one ? 1 : 0;
      if (one && rule_.kind == Rule::Kind::Forbid) {
        return fail(ErrorCode::Unsupported, "{}:{}: \"{}\" fits {} and should not be there", file_,
                    rule_.line, one_line(list_.tensors[i].name),
                    quote(rule_.patterns[one->column].text()));
      }
      if (!one && rule_.kind == Rule::Kind::Only) {
        return fail(ErrorCode::Unsupported, "{}:{}: \"{}\" is not a tensor that the rules know",
                    file_, rule_.line, one_line(list_.tensors[i].name));
      }
      keep[i] = rule_.kind == Rule::Kind::Select ? one.has_value()
                : rule_.kind == Rule::Kind::Drop ? !one.has_value()
                                                 : true;
    }
    if (found == 0 && !rule_.optional && rule_.kind != Rule::Kind::Forbid) return nothing_fits();
    drop_all_but(keep);
    return std::move(list_);
  }

  /// Of Expect: each group has a tensor for each value of one capture.
  Result<TensorList> count_values() {
    struct Seen {
      std::uint32_t first = 0;  // its first tensor
      std::vector<std::uint32_t> values;
    };
    Result<std::int64_t> count = rule_.count->evaluate_whole(scope_of({}));
    if (!count || *count < 0 || *count > static_cast<std::int64_t>(kMaxTensors)) {
      return fail(
          ErrorCode::Unsupported, "{}:{}: count: {}", file_, rule_.line,
          count ? fmt::format("{} (0 to {})", *count, kMaxTensors) : count.error().message());
    }
    std::map<std::string, Seen> groups;
    Captured captured(rule_.captures);
    for (std::uint32_t i = 0; i < list_.tensors.size(); ++i) {
      CKFS_TRY(const std::optional<Match> one, match(list_.tensors[i], captured));
      if (!one) continue;
      const std::optional<double> value = one->values[rule_.over];
      CKFS_CHECK(value.has_value());  // a number by its pattern
      std::string others;
      for (std::size_t k = 0; k < rule_.captures; ++k) {
        if (k != rule_.over && rule_.patterns[one->column].has(k)) others += captured[k];
        others += '\0';
      }
      const auto [group, is_new] = groups.try_emplace(std::move(others), Seen{i, {}});
      if (*value >= static_cast<double>(*count)) {
        return at(
            list_.tensors[i].name,
            Error(ErrorCode::Unsupported, fmt::format("{} is {}, of {} (counted from 0)",
                                                      rule_.variables[rule_.over], *value, *count)),
            rule_.line);
      }
      group->second.values.push_back(static_cast<std::uint32_t>(*value));
    }
    if (groups.empty() && *count > 0 && !rule_.optional) return nothing_fits();
    for (auto& [others, group] : groups) {
      std::ranges::sort(group.values);
      std::uint32_t missing = 0;
      for (const std::uint32_t value : group.values) missing += value == missing ? 1 : 0;
      if (missing == *count) continue;
      return at(
          list_.tensors[group.first].name,
          Error(ErrorCode::Unsupported, fmt::format("{} {} is missing, of {} tensors like this one",
                                                    rule_.variables[rule_.over], missing, *count)),
          rule_.line);
    }
    return std::move(list_);
  }

  void drop_all_but(const std::vector<bool>& keep) {
    if (std::ranges::find(keep, false) == keep.end()) return;
    std::vector<std::uint32_t> now(keep.size(), ModelTensor::kNone);
    std::uint32_t count = 0;
    for (std::size_t i = 0; i < keep.size(); ++i) {
      if (!keep[i]) continue;
      now[i] = count;
      if (count != i) list_.tensors[count] = std::move(list_.tensors[i]);
      ++count;
    }
    list_.tensors.erase(list_.tensors.begin() + count, list_.tensors.end());
    for (ModelTensor& tensor : list_.tensors) {
      if (tensor.same_as != ModelTensor::kNone) tensor.same_as = now[tensor.same_as];
    }
  }

  /// Whether every tensor is a group of its own, which then need not be kept.
  bool is_single() const {
    return rule_.patterns.size() == 1 &&
           std::ranges::none_of(rule_.operations, [](const Operation& operation) {
             return operation.kind == Operation::Kind::Stack ||
                    operation.kind == Operation::Kind::ConcatOver;
           });
  }

  /// Whether the rule's result is the tensor that it takes, by another name; then an alias stays an
  /// alias. With several columns each would be an alias of the first's.
  bool is_renamed() const {
    return rule_.operations.empty() && !rule_.copy && rule_.patterns.size() == 1;
  }

  /// The number of a list of axes, which many tensors share.
  std::uint32_t number_of(const std::vector<std::string>& axes) {
    if (axes.empty()) return ModelTensor::kNone;
    const auto known = std::ranges::find(list_.axes, axes);
    const auto number = static_cast<std::uint32_t>(known - list_.axes.begin());
    if (known == list_.axes.end()) list_.axes.push_back(axes);
    return number;
  }

  Result<void> collect() {
    taken_.assign(list_.tensors.size(), false);
    const bool single = is_single();
    // By what distinguishes the results of a rule: the variables in their names.
    std::vector<std::size_t> naming;
    for (std::size_t i = 0; i < rule_.captures + rule_.lets.size(); ++i) {
      if (std::ranges::any_of(rule_.give, [&](const Template& name) { return name.uses(i); })) {
        naming.push_back(i);
      }
    }
    std::vector<std::size_t> key_variables;
    for (const std::string& key : rule_.keys) {
      key_variables.push_back(static_cast<std::size_t>(std::ranges::find(rule_.variables, key) -
                                                       rule_.variables.begin()));
    }
    NameMap<std::size_t> known;
    std::string name;
    Captured captured(rule_.captures);
    for (std::uint32_t i = 0; i < list_.tensors.size(); ++i) {
      const ModelTensor& tensor = list_.tensors[i];
      CKFS_TRY(std::optional<Match> one, match(tensor, captured));
      if (!one) continue;
      taken_[i] = true;
      ++found_;
      Taken taken{.tensor = i, .column = static_cast<std::uint32_t>(one->column)};
      for (std::size_t k = 0; k < key_variables.size(); ++k) {
        const std::optional<double>& value = one->values[key_variables[k]];
        if (!value) continue;  // unstacked later
        if (*value != std::floor(*value) || *value < 0 ||
            *value > static_cast<double>(kMaxNumber)) {
          return at(tensor.name,
                    Error(ErrorCode::Unsupported,
                          fmt::format("{} is {} (0 to {})", rule_.keys[k], *value, kMaxNumber)),
                    rule_.line);
        }
        taken.keys[k] = static_cast<std::int32_t>(*value);
      }
      if (single) {
        TakenGroup group{captured, std::move(one->values), {taken}};
        CKFS_TRY_VOID(make(group));
        continue;
      }
      name.clear();
      for (const std::size_t variable : naming) {
        if (variable < rule_.captures) {
          name += captured[variable];
        } else {
          fmt::format_to(std::back_inserter(name), "{}", *one->values[variable]);
        }
        name += '\0';
      }
      const auto [place, is_new] = known.try_emplace(name, groups_.size());
      if (is_new) groups_.push_back({captured, std::move(one->values), {}});
      groups_[place->second].taken.push_back(taken);
    }
    return {};
  }

  Result<void> make(const TakenGroup& group) {
    const ModelTensor& first = list_.tensors[group.taken.front().tensor];
    Flow flow;
    flow.taken = first.expr.dtype();
    flow.columns.resize(rule_.patterns.size());
    for (const Taken& taken : group.taken) {
      FlowColumn& column = flow.columns[taken.column];
      const ModelTensor& tensor = list_.tensors[taken.tensor];
      if (column.parts.empty()) {
        column.name = tensor.name;
        if (taken.column == 0 && tensor.split != ModelTensor::kNone) {
          flow.axes = list_.axes[tensor.split];
        }
      }
      column.parts.push_back({taken.keys, tensor.expr});
      flow.exactness = std::max(flow.exactness, tensor.exactness);
    }
    for (std::size_t i = 0; i < flow.columns.size(); ++i) {
      if (!flow.columns[i].parts.empty()) continue;
      return at(first.name,
                Error(ErrorCode::Unsupported, fmt::format("no tensor matches {} in this group",
                                                          quote(rule_.patterns[i].text()))),
                rule_.line);
    }
    for (const Operation& operation : rule_.operations) {
      Result<Flow> next = operation.run(std::move(flow), scope_of(group.values));
      if (!next) return at(subject(group, first), next.error(), operation.line);
      flow = std::move(*next);
    }
    if (flow.columns.size() != rule_.give.size()) {
      return at(first.name,
                Error(ErrorCode::Unsupported, fmt::format("{} tensors for {} names in give",
                                                          flow.columns.size(), rule_.give.size())),
                rule_.line);
    }
    if (!rule_.axes.empty()) flow.axes = rule_.axes;
    for (std::size_t i = 0; i < flow.columns.size(); ++i) {
      CKFS_TRY_VOID(give(rule_.give[i], flow.columns[i], flow, group, first));
    }
    return {};
  }

  /// The name that the group's result would have, if it can be determined; for errors.
  std::string subject(const TakenGroup& group, const ModelTensor& first) const {
    const Result<std::string> name =
        rule_.give.front().fill(group.captured, scope_of(group.values, first.expr.shape()));
    return name ? *name : std::string(first.name);
  }

  /// Adds the parts of a column of `flow` to the results.
  Result<void> give(const Template& name, FlowColumn& column, const Flow& flow,
                    const TakenGroup& group, const ModelTensor& first) {
    Values values = group.values;
    const std::uint32_t axes = number_of(flow.axes);
    for (FlowPart& part : column.parts) {
      const bool fits = flow.axes.size() == part.expr.shape().size();
      if (!fits && !rule_.axes.empty()) {
        return at(
            first.name,
            Error(ErrorCode::Unsupported, fmt::format("{} axes for a shape of {} dimensions",
                                                      rule_.axes.size(), part.expr.shape().size())),
            rule_.line);
      }
      for (std::size_t k = 0; k < rule_.keys.size(); ++k) {
        const auto variable = static_cast<std::size_t>(
            std::ranges::find(rule_.variables, rule_.keys[k]) - rule_.variables.begin());
        if (variable >= rule_.captures + rule_.lets.size()) values[variable] = part.keys[k];
      }
      Result<std::string> text = name.fill(group.captured, scope_of(values, part.expr.shape()));
      if (!text) return at(first.name, text.error(), rule_.line);
      if (text->empty()) {
        return at(first.name, Error(ErrorCode::Unsupported, "becomes a tensor without a name"),
                  rule_.line);
      }
      if (text->size() > kMaxTensorName) {
        return at(
            first.name,
            Error(ErrorCode::Unsupported, fmt::format("becomes a name of {} characters (limit {})",
                                                      text->size(), kMaxTensorName)),
            rule_.line);
      }
      if (made_.size() + list_.tensors.size() - (rule_.copy ? 0 : found_) >= kMaxTensors) {
        return at(first.name,
                  Error(ErrorCode::Unsupported, fmt::format("more than {} tensors", kMaxTensors)),
                  rule_.line);
      }
      Made made{group.taken.front().tensor, first};
      made.tensor.name = names_.emplace_back(std::move(*text));
      made.tensor.expr = std::move(part.expr);
      made.tensor.exactness = flow.exactness;
      made.tensor.split = fits ? axes : ModelTensor::kNone;
      if (!is_renamed()) made.tensor.same_as = ModelTensor::kNone;
      made_.push_back(std::move(made));
    }
    return {};
  }

  /// The tensors that stay and those that were made, in order.
  Result<TensorList> merge() {
    list_.names.splice(list_.names.end(), names_);
    // And the position of its source.
    std::unordered_map<std::string_view, std::uint32_t, NameHash> known;
    known.reserve(made_.size());
    // Sizes that they have: most of the names that stay need not be hashed.
    std::vector<bool> sizes(kMaxTensorName + 1);
    for (Made& made : made_) {
      sizes[made.tensor.name.size()] = true;
      const auto [same, is_new] = known.emplace(made.tensor.name, made.position);
      if (is_new) continue;
      return at(
          made.tensor.name,
          Error(ErrorCode::Unsupported, fmt::format("is made twice, of \"{}\" and of \"{}\"",
                                                    one_line(list_.tensors[same->second].name),
                                                    one_line(list_.tensors[made.position].name))),
          rule_.line);
    }
    std::ranges::stable_sort(made_, {}, &Made::position);
    std::vector<ModelTensor> merged;
    std::vector<std::uint32_t> now(list_.tensors.size(), ModelTensor::kNone);
    merged.reserve(list_.tensors.size());
    auto next = made_.begin();
    for (std::uint32_t i = 0; i < list_.tensors.size(); ++i) {
      if (!taken_[i] || rule_.copy) {
        const std::string_view name = list_.tensors[i].name;
        if (name.size() < sizes.size() && sizes[name.size()] && known.contains(name)) {
          return at(list_.tensors[i].name,
                    Error(ErrorCode::Unsupported, "is made by this rule and is there already"),
                    rule_.line);
        }
        now[i] = static_cast<std::uint32_t>(merged.size());
        merged.push_back(std::move(list_.tensors[i]));
      }
      for (; next != made_.end() && next->position == i; ++next) {
        if (is_renamed()) {
          now[i] = static_cast<std::uint32_t>(merged.size());
        }
        merged.push_back(std::move(next->tensor));
      }
    }
    for (std::uint32_t i = 0; i < merged.size(); ++i) {
      std::uint32_t& same = merged[i].same_as;
      if (same != ModelTensor::kNone) same = now[same];
      if (same != ModelTensor::kNone && same >= i) same = ModelTensor::kNone;
    }
    list_.tensors = std::move(merged);
    return std::move(list_);
  }

  const Rule& rule_;
  std::string_view file_;
  const ConfigNumbers& config_;
  TensorList list_;
  std::vector<bool> taken_;
  std::vector<TakenGroup> groups_;
  std::vector<Made> made_;
  std::list<std::string> names_;
  std::size_t found_ = 0;
};

}  // namespace

Result<TensorList> apply_rule(const Rule& rule, const ConfigNumbers& config, TensorList list) {
  return RuleRun(rule, config, std::move(list)).run();
}

Result<TensorList> apply_rules(const RuleList& rules, const ConfigNumbers& config,
                               TensorList list) {
  for (const Rule& rule : rules.rules) {
    CKFS_TRY(list, apply_rule(rule, config, std::move(list)));
  }
  return list;
}

TensorList without_axes(TensorList list) {
  for (ModelTensor& tensor : list.tensors) tensor.split = ModelTensor::kNone;
  list.axes.clear();
  return list;
}

}  // namespace ckfs
