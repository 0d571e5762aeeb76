// A recipe asks for few numbers, but asks some of them for each of 200,000 tensors: expressions are
// parsed once into nodes whose operands come before them.
#include "view/recipes/expression.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>

#include "base/text.h"
#include "tensor/float_bits.h"

namespace ckfs {
namespace {

constexpr std::size_t kMaxExpression = 1000;  // characters
constexpr int kMaxDepth = 32;
constexpr double kMaxWhole = 9007199254740992.0;  // 2^53

/// One that an int64 holds, too.
bool is_whole(double value) {
  return value == std::floor(value) && std::abs(value) <= kMaxWhole;
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// By way of F32, as NumPy makes such scalars.
template <DType kDType>
double rounded(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return std::bit_cast<float>(
      bits_of::Format<kDType>::widen(bits_of::Format<kDType>::narrow(bits)));
}

void collect_model_types(const JsonNode& node, std::vector<std::string>& found) {
  if (const JsonNode* type = node.find("model_type");
      type != nullptr && type->kind == JsonNode::Kind::String) {
    found.push_back(type->text);
  }
  for (const JsonNode& item : node.items) {
    if (item.kind == JsonNode::Kind::Object) collect_model_types(item, found);
  }
}

/// Where to look for numbers that are not at the top level.
constexpr std::array<std::string_view, 4> kParts = {"text_config", "language_config", "llm_config",
                                                    "thinker_config"};

/// Rules look for numbers once for each tensor, from member to member of an object; models have
/// some hundred members.
constexpr std::size_t kMaxMembers = 1000;

/// Behind the path of a list: how many it has.
constexpr std::string_view kLength = ".length";

Result<void> check_members(const JsonNode& object, std::string_view file_name) {
  if (object.keys.size() > kMaxMembers) {
    return fail(ErrorCode::Corrupt,
                "{}:{}: an object of {} members, in which numbers are sought "
                "(limit {})",
                file_name, object.line, object.keys.size(), kMaxMembers);
  }
  return {};
}

}  // namespace

Result<ConfigNumbers> ConfigNumbers::parse(std::string_view config, std::string_view file_name) {
  ConfigNumbers numbers;
  CKFS_TRY(numbers.root_, parse_json_tree(config, file_name, JsonKeys::LastWins));
  CKFS_TRY_VOID(check_members(numbers.root_, file_name));
  for (const std::string_view name : kParts) {
    const JsonNode* const part = numbers.root_.find(name);
    if (part == nullptr) continue;
    CKFS_TRY_VOID(check_members(*part, file_name));
    const JsonNode* const deeper = part->find("text_config");
    if (deeper != nullptr) CKFS_TRY_VOID(check_members(*deeper, file_name));
  }
  numbers.present_ = true;
  return numbers;
}

/// The node of that path, of one of two kinds.
const JsonNode* ConfigNumbers::find(std::string_view path, JsonNode::Kind kind,
                                    JsonNode::Kind or_kind) const {
  const auto look_in = [&](const JsonNode* node) -> const JsonNode* {
    std::string_view rest = path;
    while (node != nullptr) {
      const std::size_t dot = rest.find('.');
      // Deeper objects with more members are tables of names (id2label) and hold no number of a
      // model.
      node = node->keys.size() > kMaxMembers ? nullptr : node->find(rest.substr(0, dot));
      if (dot == std::string_view::npos) break;
      rest.remove_prefix(dot + 1);
    }
    return node != nullptr && (node->kind == kind || node->kind == or_kind) ? node : nullptr;
  };
  if (const JsonNode* found = look_in(&root_)) return found;
  for (const std::string_view part : kParts) {
    const JsonNode* config = root_.find(part);
    if (config == nullptr) continue;
    if (const JsonNode* found = look_in(config)) return found;
    if (const JsonNode* deeper = config->find("text_config")) {
      if (const JsonNode* found = look_in(deeper)) return found;
    }
  }
  return nullptr;
}

std::optional<double> ConfigNumbers::number(std::string_view path) const {
  if (const auto known = set_.find(path); known != set_.end()) return known->second;
  const JsonNode* node = find(path, JsonNode::Kind::Number, JsonNode::Kind::Boolean);
  if (node != nullptr) return node->number;
  if (path.ends_with(kLength)) {
    const std::string_view list = path.substr(0, path.size() - kLength.size());
    node = find(list, JsonNode::Kind::List, JsonNode::Kind::List);
    if (node != nullptr) return static_cast<double>(node->items.size());
  }
  const auto known = defaults_.find(path);
  return known == defaults_.end() ? std::nullopt : std::optional(known->second);
}

const JsonNode* ConfigNumbers::find_item(std::string_view path, double index) const {
  const JsonNode* const list = find(path, JsonNode::Kind::List, JsonNode::Kind::List);
  if (list == nullptr || index != std::floor(index) || index < 0 ||
      index >= static_cast<double>(list->items.size())) {
    return nullptr;
  }
  return &list->items[static_cast<std::size_t>(index)];
}

std::optional<double> ConfigNumbers::number(std::string_view path, double index) const {
  const JsonNode* const item = find_item(path, index);
  if (item == nullptr) return std::nullopt;
  const bool is_number =
      item->kind == JsonNode::Kind::Number || item->kind == JsonNode::Kind::Boolean;
  return is_number ? std::optional(item->number) : std::nullopt;
}

std::optional<std::string> ConfigNumbers::text(std::string_view path, double index) const {
  const JsonNode* const item = find_item(path, index);
  if (item == nullptr || item->kind != JsonNode::Kind::String) return std::nullopt;
  return item->text;
}

std::optional<std::string> ConfigNumbers::text(std::string_view path) const {
  if (const auto known = texts_.find(path); known != texts_.end()) return known->second;
  const JsonNode* node = find(path, JsonNode::Kind::String, JsonNode::Kind::String);
  return node == nullptr ? std::nullopt : std::optional(node->text);
}

std::vector<std::string> ConfigNumbers::families() const {
  std::vector<std::string> found;
  collect_model_types(root_, found);
  if (const JsonNode* names = root_.find("architectures")) {
    for (const JsonNode& name : names->items) {
      if (name.kind == JsonNode::Kind::String) found.push_back(name.text);
    }
  }
  return found;
}

/// Recursive descent, a function for each level of the operators.
class ExpressionParser {
 public:
  ExpressionParser(std::string_view text, std::span<const std::string> names)
      : text_(text), rest_(text), names_(names) {
    expression_.nodes_.clear();
    expression_.text_ = text;
  }

  Result<Expression> parse() {
    if (text_.size() > kMaxExpression) {
      return fail(ErrorCode::Corrupt, "an expression of {} characters (limit {})", text_.size(),
                  kMaxExpression);
    }
    CKFS_TRY_VOID(otherwise(0));
    skip();
    if (!rest_.empty()) return wrong();
    return std::move(expression_);
  }

 private:
  using Kind = Expression::Kind;

  struct Function {
    std::string_view name;
    Kind kind;
    int operands;
  };
  static constexpr std::array<Function, 7> kFunctions{{{"dim", Kind::Dim, 1},
                                                       {"sqrt", Kind::Sqrt, 1},
                                                       {"f32", Kind::ToF32, 1},
                                                       {"f16", Kind::ToF16, 1},
                                                       {"bf16", Kind::ToBf16, 1},
                                                       {"min", Kind::Min, 2},
                                                       {"max", Kind::Max, 2}}};

  void skip() {
    while (!rest_.empty() && is_space(rest_.front())) rest_.remove_prefix(1);
  }
  bool take(std::string_view token) {
    skip();
    if (!rest_.starts_with(token)) return false;
    rest_.remove_prefix(token.size());
    return true;
  }
  Failure wrong() const {
    return fail(
        ErrorCode::Corrupt, "expression {}: {}", quote(text_),
        rest_.empty() ? std::string("ends too early") : "cannot continue with " + quote(rest_));
  }
  std::size_t last() const { return expression_.nodes_.size() - 1; }
  void join(Kind kind, std::size_t left) {
    expression_.nodes_.push_back({.kind = kind, .left = left, .right = last()});
  }

  Result<void> otherwise(int depth) {
    if (depth > kMaxDepth) {
      return fail(ErrorCode::Corrupt, "expression {}: nested more than {} deep", quote(text_),
                  kMaxDepth);
    }
    CKFS_TRY_VOID(sum(depth));
    while (take("??")) {
      const std::size_t left = last();
      CKFS_TRY_VOID(sum(depth));
      join(Kind::Otherwise, left);
    }
    return {};
  }
  Result<void> sum(int depth) {
    CKFS_TRY_VOID(product(depth));
    while (true) {
      const bool plus = take("+");
      if (!plus && !take("-")) return {};
      const std::size_t left = last();
      CKFS_TRY_VOID(product(depth));
      join(plus ? Kind::Add : Kind::Subtract, left);
    }
  }
  Result<void> product(int depth) {
    CKFS_TRY_VOID(factor(depth));
    while (true) {
      Kind kind = Kind::Multiply;
      if (take("*")) {
        kind = Kind::Multiply;
      } else if (take("//")) {
        kind = Kind::FloorDivide;
      } else if (take("/")) {
        kind = Kind::Divide;
      } else if (take("%")) {
        kind = Kind::Modulo;
      } else {
        return {};
      }
      const std::size_t left = last();
      CKFS_TRY_VOID(factor(depth));
      join(kind, left);
    }
  }
  Result<void> factor(int depth) {
    skip();
    if (depth > kMaxDepth) {
      return fail(ErrorCode::Corrupt, "expression {}: nested more than {} deep", quote(text_),
                  kMaxDepth);
    }
    if (take("-")) {
      CKFS_TRY_VOID(factor(depth + 1));
      expression_.nodes_.push_back({.kind = Kind::Negate, .left = last()});
      return {};
    }
    if (take("(")) {
      CKFS_TRY_VOID(otherwise(depth + 1));
      return take(")") ? Result<void>() : wrong();
    }
    if (take("$")) {
      const std::string_view path = word(true);
      if (path.empty()) return wrong();
      if (!rest_.starts_with('[')) {
        expression_.nodes_.push_back({.kind = Kind::Config, .path = std::string(path)});
        return {};
      }
      rest_.remove_prefix(1);
      CKFS_TRY_VOID(otherwise(depth + 1));
      if (!take("]")) return wrong();
      expression_.nodes_.push_back({.kind = Kind::Item, .path = std::string(path), .left = last()});
      return {};
    }
    if (!rest_.empty() && is_digit(rest_.front())) {
      double number = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
      if (error != std::errc()) return wrong();
      rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
      expression_.nodes_.push_back({.kind = Kind::Number, .number = number});
      return {};
    }
    const std::string_view before = rest_;
    const std::string_view name = word(false);
    const auto* const function = std::ranges::find(kFunctions, name, &Function::name);
    if (function != kFunctions.end()) {
      if (!take("(")) return wrong();
      CKFS_TRY_VOID(otherwise(depth + 1));
      const std::size_t left = last();
      if (function->operands == 2) {
        if (!take(",")) return wrong();
        CKFS_TRY_VOID(otherwise(depth + 1));
      }
      if (!take(")")) return wrong();
      expression_.nodes_.push_back({.kind = function->kind, .left = left, .right = last()});
      return {};
    }
    if (name == "rank") {
      if (!take("(") || !take(")")) return wrong();
      expression_.nodes_.push_back({.kind = Kind::Rank});
      return {};
    }
    const auto found = std::ranges::find(names_, name);
    if (name.empty() || found == names_.end()) {
      rest_ = before;
      return wrong();
    }
    expression_.nodes_.push_back(
        {.kind = Kind::Capture, .capture = static_cast<std::size_t>(found - names_.begin())});
    return {};
  }
  std::string_view word(bool dots) {
    std::size_t size = 0;
    while (size < rest_.size() && (is_letter(rest_[size]) || (size > 0 && is_digit(rest_[size])) ||
                                   (dots && size > 0 && rest_[size] == '.'))) {
      ++size;
    }
    const std::string_view found = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return found;
  }

  std::string_view text_, rest_;
  std::span<const std::string> names_;
  Expression expression_;
};

Result<Expression> Expression::parse(std::string_view text, std::span<const std::string> names) {
  return ExpressionParser(text, names).parse();
}

Expression Expression::of(double number) {
  Expression expression;
  expression.nodes_.back().number = number;
  expression.text_ = fmt::format("{}", number);
  return expression;
}

Result<double> Expression::evaluate(const Scope& scope) const {
  CKFS_TRY(const double value, evaluate(nodes_.size() - 1, scope));
  if (!std::isfinite(value)) {
    return fail(ErrorCode::InvalidArgument, "{} is {}", quote(text_), value);
  }
  return value;
}

Result<std::int64_t> Expression::evaluate_whole(const Scope& scope) const {
  CKFS_TRY(const double value, evaluate(scope));
  if (!is_whole(value)) {
    return fail(ErrorCode::InvalidArgument, "{} is {}, not a whole number up to 2^53", quote(text_),
                value);
  }
  return static_cast<std::int64_t>(value);
}

Failure Expression::no_shape() const {
  return fail(ErrorCode::InvalidArgument, "{}: no shape is known here", quote(text_));
}

Result<double> Expression::evaluate(std::size_t index, const Scope& scope) const {
  const Node& node = nodes_[index];
  switch (node.kind) {
    case Kind::Number:
      return node.number;
    case Kind::Capture: {
      const std::optional<double> value =
          node.capture < scope.captures.size() ? scope.captures[node.capture] : std::nullopt;
      if (!value)
        return fail(ErrorCode::InvalidArgument, "{}: a capture is not a number", quote(text_));
      return *value;
    }
    case Kind::Config: {
      const std::optional<double> value =
          scope.config != nullptr ? scope.config->number(node.path) : std::nullopt;
      if (!value) {
        return fail(ErrorCode::InvalidArgument, "config.json: has no number {}", node.path);
      }
      return *value;
    }
    case Kind::Rank:
      if (!scope.shape) return no_shape();
      return static_cast<double>(scope.shape->size());
    case Kind::Otherwise:
      return evaluate(lacks_number(node.left, scope) ? node.right : node.left, scope);
    default:
      break;
  }
  CKFS_TRY(const double left, evaluate(node.left, scope));
  if (node.kind == Kind::Dim) {
    if (!scope.shape) return no_shape();
    if (left != std::floor(left) || left < 0 || left >= static_cast<double>(scope.shape->size())) {
      return fail(ErrorCode::InvalidArgument, "{}: no dimension {} in a shape of {}", quote(text_),
                  left, scope.shape->size());
    }
    return static_cast<double>((*scope.shape)[static_cast<std::size_t>(left)]);
  }
  if (node.kind == Kind::Item) {
    const std::optional<double> value =
        scope.config != nullptr ? scope.config->number(node.path, left) : std::nullopt;
    if (!value) {
      return fail(ErrorCode::InvalidArgument, "config.json: has no number {}[{}]", node.path, left);
    }
    return *value;
  }
  if (node.kind == Kind::Sqrt) return std::sqrt(left);
  if (node.kind == Kind::ToF32) return rounded<DType::F32>(left);
  if (node.kind == Kind::ToF16) return rounded<DType::F16>(left);
  if (node.kind == Kind::ToBf16) return rounded<DType::BF16>(left);
  if (node.kind == Kind::Negate) return -left;
  CKFS_TRY(const double right, evaluate(node.right, scope));
  switch (node.kind) {
    case Kind::Add:
      return left + right;
    case Kind::Subtract:
      return left - right;
    case Kind::Multiply:
      return left * right;
    case Kind::Divide:
      return left / right;
    case Kind::Min:
      return std::min(left, right);
    case Kind::Max:
      return std::max(left, right);
    case Kind::FloorDivide:
      return std::floor(left / right);
    default:
      return left - right * std::floor(left / right);
  }
}

std::size_t Expression::operands(Kind kind) {
  if (kind < Kind::Dim) return 0;
  return kind < Kind::Min ? 1 : 2;
}

bool Expression::lacks_number(std::size_t index, const Scope& scope) const {
  const Node& node = nodes_[index];
  if (node.kind == Kind::Config) return scope.config == nullptr || !scope.config->number(node.path);
  if (node.kind == Kind::Otherwise) {
    return lacks_number(node.left, scope) && lacks_number(node.right, scope);
  }
  const std::size_t count = operands(node.kind);
  if ((count > 0 && lacks_number(node.left, scope)) ||
      (count > 1 && lacks_number(node.right, scope))) {
    return true;
  }
  if (node.kind != Kind::Item) return false;
  const Result<double> at = evaluate(node.left, scope);
  return scope.config == nullptr || (at && !scope.config->number(node.path, *at));
}

bool Expression::uses(std::size_t capture) const {
  return std::ranges::any_of(nodes_, [&](const Node& node) {
    return node.kind == Kind::Capture && node.capture == capture;
  });
}

bool Expression::needs_shape() const {
  return std::ranges::any_of(
      nodes_, [](const Node& node) { return node.kind == Kind::Rank || node.kind == Kind::Dim; });
}

void Expression::add_unknowns(std::size_t index, const ConfigNumbers& config,
                              std::set<std::string>& found) const {
  const Node& node = nodes_[index];
  if ((node.kind == Kind::Config || node.kind == Kind::Item) && !config.knows(node.path)) {
    found.insert(node.path);
  }
  const std::size_t count = operands(node.kind);
  std::set<std::string> of_left;
  if (count > 0) add_unknowns(node.left, config, of_left);
  // If the left side of ?? exists, or is unknown, the right one is not used.
  const bool goes_on =
      node.kind != Kind::Otherwise ||
      (of_left.empty() && lacks_number(node.left, {.config = &config, .captures = {}}));
  found.merge(of_left);
  if (count > 1 && goes_on) add_unknowns(node.right, config, found);
}

std::set<std::string> Expression::unknowns(const ConfigNumbers& config) const {
  std::set<std::string> found;
  add_unknowns(nodes_.size() - 1, config, found);
  return found;
}

std::optional<std::pair<std::string, double>> Expression::solve(double value,
                                                                const Scope& scope) const {
  const std::set<std::string> unknown = unknowns(*scope.config);
  if (unknown.size() != 1) return std::nullopt;
  ConfigNumbers config = *scope.config;
  const auto at = [&](double number) {
    config.set(*unknown.begin(), number);
    return evaluate({.config = &config, .captures = scope.captures, .shape = scope.shape});
  };
  const Result<double> zero = at(0), one = at(1);
  if (!zero || !one || *zero == *one) return std::nullopt;
  const double number = (value - *zero) / (*one - *zero);
  const Result<double> found = at(number);
  if (!found || *found != value) return std::nullopt;
  // min($n, 64) and $n % 8 are on the line for a while.
  constexpr double kFar = 1'000'003, kPrecision = 1e-9;
  const Result<double> far = at(kFar);
  const double wanted = *zero + (*one - *zero) * kFar;
  if (!far || std::abs(*far - wanted) > kPrecision * std::abs(wanted)) return std::nullopt;
  return std::pair(*unknown.begin(), number);
}

std::optional<std::size_t> Expression::is_dim() const {
  const Node& node = nodes_.back();
  if (node.kind != Kind::Dim || nodes_[node.left].kind != Kind::Number) return std::nullopt;
  const double number = nodes_[node.left].number;
  if (!is_whole(number) || number < 0) return std::nullopt;
  return static_cast<std::size_t>(number);
}

std::set<std::string> Condition::unknowns(const ConfigNumbers& config) const {
  if (!path_.empty()) return {};
  std::set<std::string> found = left_.unknowns(config);
  found.merge(right_.unknowns(config));
  return found;
}

Result<Condition> Condition::parse(std::string_view text, std::span<const std::string> names) {
  struct Spelling {
    std::string_view text;
    Relation relation;
  };
  // Two characters before one: the first that is found at a place is meant.
  constexpr std::array<Spelling, 6> kRelations{{{"!=", Relation::NotEqual},
                                                {"<=", Relation::LessEqual},
                                                {">=", Relation::GreaterEqual},
                                                {"=", Relation::Equal},
                                                {"<", Relation::Less},
                                                {">", Relation::Greater}}};
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (const Spelling& spelling : kRelations) {
      if (!text.substr(at).starts_with(spelling.text)) continue;
      Condition condition;
      condition.relation_ = spelling.relation;
      const std::string_view left = trim(text.substr(0, at));
      const std::string_view right = trim(text.substr(at + spelling.text.size()));
      if (right.starts_with('\'')) {
        if (!left.starts_with('$') || left.size() < 2 || right.size() < 2 ||
            !right.ends_with('\'') ||
            (condition.relation_ != Relation::Equal && condition.relation_ != Relation::NotEqual)) {
          return fail(ErrorCode::Corrupt, "condition {}: is not $path = 'word' (or !=)",
                      quote(text));
        }
        condition.path_ = left.substr(1);
        condition.word_ = right.substr(1, right.size() - 2);
        if (const std::size_t open = left.find('['); open != std::string_view::npos) {
          if (!left.ends_with(']')) {
            return fail(ErrorCode::Corrupt, "condition {}: no ] behind the index", quote(text));
          }
          condition.path_ = left.substr(1, open - 1);
          const std::string_view index = left.substr(open + 1, left.size() - open - 2);
          CKFS_TRY(condition.index_, Expression::parse(index, names));
        }
        return condition;
      }
      CKFS_TRY(condition.left_, Expression::parse(text.substr(0, at), names));
      CKFS_TRY(condition.right_, Expression::parse(text.substr(at + spelling.text.size()), names));
      return condition;
    }
  }
  return fail(ErrorCode::Corrupt, "condition {}: none of = != < <= > >=", quote(text));
}

Result<bool> Condition::holds(const Scope& scope) const {
  if (!path_.empty()) {
    std::optional<std::string> word;
    if (scope.config != nullptr && index_) {
      CKFS_TRY(const double index, index_->evaluate(scope));
      word = scope.config->text(path_, index);
    } else if (scope.config != nullptr) {
      word = scope.config->text(path_);
    }
    const bool equal = word == word_;
    return equal == (relation_ == Relation::Equal);
  }
  CKFS_TRY(const double left, left_.evaluate(scope));
  CKFS_TRY(const double right, right_.evaluate(scope));
  switch (relation_) {
    case Relation::Equal:
      return left == right;
    case Relation::NotEqual:
      return left != right;
    case Relation::Less:
      return left < right;
    case Relation::LessEqual:
      return left <= right;
    case Relation::Greater:
      return left > right;
    case Relation::GreaterEqual:
      return left >= right;
  }
  return false;
}

}  // namespace ckfs
