// From JSON to rules. Errors that do not depend on numbers are refused here, with their line.
#include <algorithm>
#include <array>
#include <ranges>

#include "base/text.h"
#include "view/recipes/recipe.h"
#include "view/view_table.h"

namespace ckfs {
namespace {

using Json = JsonNode::Kind;

constexpr std::size_t kMaxNames = 64;  // patterns or results of a rule
constexpr std::string_view kLayouts[] = {"linear", "fused", "packed"};
constexpr std::string_view kPrograms[] = {"megatron", "torchtitan", "prime-rl"};

/// Says which members an object may have.
Result<void> only(const JsonNode& node, std::string_view file,
                  std::initializer_list<std::string_view> keys) {
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    if (std::ranges::find(keys, node.keys[i]) != keys.end()) continue;
    return fail(ErrorCode::Corrupt, "{}:{}: no member {} belongs here (only {})", file,
                node.items[i].line, quote(node.keys[i]), fmt::join(keys, ", "));
  }
  return {};
}

Failure not_a(const JsonNode& node, std::string_view file, std::string_view what) {
  return fail(ErrorCode::Corrupt, "{}:{}: {} where {} belongs", file, node.line, node.kind_text(),
              what);
}

/// A string, or a list of some.
Result<std::vector<const JsonNode*>> strings(const JsonNode& node, std::string_view file) {
  std::vector<const JsonNode*> found;
  if (node.kind == Json::String) return std::vector<const JsonNode*>{&node};
  if (node.kind != Json::List || node.items.empty() || node.items.size() > kMaxNames) {
    return not_a(node, file, fmt::format("a string, or a list of 1 to {},", kMaxNames));
  }
  for (const JsonNode& item : node.items) {
    if (item.kind != Json::String) return not_a(item, file, "a string");
    found.push_back(&item);
  }
  return found;
}

Result<bool> flag(const JsonNode& object, std::string_view key, std::string_view file) {
  const JsonNode* node = object.find(key);
  if (node == nullptr) return false;
  if (node->kind != Json::Boolean) return not_a(*node, file, "true or false");
  return node->number != 0;
}

template <typename T>
Result<T> at_line(Result<T> result, const JsonNode& node, std::string_view file) {
  if (result) return result;
  return Failure(result.error().within(fmt::format("{}:{}", file, node.line)));
}

/// Conditions that must all hold.
Result<std::vector<Condition>> conditions(const JsonNode& object, std::string_view key,
                                          std::span<const std::string> variables,
                                          std::string_view file) {
  std::vector<Condition> found;
  const JsonNode* node = object.find(key);
  if (node == nullptr) return found;
  CKFS_TRY(const std::vector<const JsonNode*> texts, strings(*node, file));
  for (const JsonNode* text : texts) {
    CKFS_TRY(Condition condition, at_line(Condition::parse(text->text, variables), *text, file));
    found.push_back(std::move(condition));
  }
  return found;
}

/// The text of a member that must be a string; `otherwise` where there is none.
Result<std::string> text_of(const JsonNode& object, std::string_view key, std::string_view file,
                            std::string_view otherwise) {
  const JsonNode* node = object.find(key);
  if (node == nullptr) return std::string(otherwise);
  if (node->kind != Json::String) return not_a(*node, file, "a string");
  return node->text;
}

class RuleParser {
 public:
  RuleParser(const JsonNode& node, const std::shared_ptr<const std::string>& file)
      : node_(node), file_(*file) {
    rule_.file = file;
  }

  Result<Rule> parse() {
    if (node_.kind != Json::Object) return not_a(node_, file_, "a rule (an object)");
    rule_.line = node_.line;
    struct Word {
      std::string_view key;
      Rule::Kind kind;
    };
    constexpr std::array<Word, 6> kWords{{{"take", Rule::Kind::Make},
                                          {"select", Rule::Kind::Select},
                                          {"drop", Rule::Kind::Drop},
                                          {"expect", Rule::Kind::Expect},
                                          {"forbid", Rule::Kind::Forbid},
                                          {"only", Rule::Kind::Only}}};
    for (const Word& word : kWords) {
      const JsonNode* names = node_.find(word.key);
      if (names == nullptr) continue;
      rule_.kind = word.kind;
      CKFS_TRY_VOID(take(*names));
      if (word.kind == Rule::Kind::Make) {
        CKFS_TRY_VOID(only(node_, file_,
                           {"take", "when", "let", "where", "do", "give", "axes", "back",
                            "optional", "copy", "comment"}));
        CKFS_TRY_VOID(make());
      } else if (word.kind == Rule::Kind::Expect) {
        CKFS_TRY_VOID(
            only(node_, file_,
                 {"expect", "each", "when", "where", "over", "count", "optional", "comment"}));
        CKFS_TRY(rule_.where, conditions(node_, "where", rule_.variables, file_));
        CKFS_TRY_VOID(over());
      } else {
        const bool chooses = word.kind == Rule::Kind::Select || word.kind == Rule::Kind::Drop;
        CKFS_TRY_VOID(chooses
                          ? only(node_, file_, {word.key, "when", "where", "optional", "comment"})
                          : only(node_, file_, {word.key, "when", "where", "comment"}));
        CKFS_TRY(rule_.where, conditions(node_, "where", rule_.variables, file_));
      }
      CKFS_TRY(rule_.when, conditions(node_, "when", {}, file_));
      CKFS_TRY(rule_.optional, flag(node_, "optional", file_));
      return std::move(rule_);
    }
    return fail(ErrorCode::Corrupt,
                "{}:{}: a rule has one of take, select, drop, expect, forbid, only, use", file_,
                node_.line);
  }

 private:
  Result<void> take(const JsonNode& names) {
    CKFS_TRY(const std::vector<const JsonNode*> texts, strings(names, file_));
    for (const JsonNode* text : texts) {
      CKFS_TRY(Pattern pattern, at_line(Pattern::parse(text->text, rule_.variables), *text, file_));
      rule_.patterns.push_back(std::move(pattern));
    }
    rule_.captures = rule_.variables.size();
    for (std::size_t capture = 0; capture < rule_.captures; ++capture) {
      for (std::size_t i = 0; i < rule_.patterns.size(); ++i) {
        if (rule_.patterns[i].has(capture) || rule_.kind != Rule::Kind::Make) continue;
        return fail(ErrorCode::Corrupt, "{}:{}: {} has no capture {}, which another pattern has",
                    file_, texts[i]->line, quote(texts[i]->text), rule_.variables[capture]);
      }
    }
    return {};
  }

  /// "over": "i", "count": "$num_hidden_layers".
  Result<void> over() {
    const JsonNode* name = node_.find("over");
    const JsonNode* count = node_.find("count");
    if (name == nullptr && count == nullptr) return {};
    if (name == nullptr || count == nullptr || name->kind != Json::String) {
      return fail(ErrorCode::Corrupt, "{}:{}: expect has over (a variable) and count, or neither",
                  file_, node_.line);
    }
    const auto variable = std::ranges::find(rule_.variables, name->text);
    rule_.over = static_cast<std::size_t>(variable - rule_.variables.begin());
    const bool numbers = std::ranges::all_of(
        rule_.patterns, [&](const Pattern& pattern) { return pattern.is_number(rule_.over); });
    if (variable == rule_.variables.end() || !numbers) {
      return fail(ErrorCode::Corrupt, "{}:{}: {} is not a number in each pattern of this rule",
                  file_, name->line, quote(name->text));
    }
    if (count->kind == Json::Number) {
      rule_.count = Expression::of(count->number);
      return {};
    }
    if (count->kind != Json::String) return not_a(*count, file_, "a number or an expression");
    CKFS_TRY(rule_.count, at_line(Expression::parse(count->text, {}), *count, file_));
    return {};
  }

  Result<void> add_variable(const std::string& name, const JsonNode& node) {
    if (std::ranges::find(rule_.variables, name) != rule_.variables.end()) {
      return fail(ErrorCode::Corrupt, "{}:{}: {} is a variable already", file_, node.line,
                  quote(name));
    }
    if (rule_.variables.size() >= 2 * kMaxCaptures) {
      return fail(ErrorCode::Corrupt, "{}:{}: more than {} variables in a rule", file_, node.line,
                  2 * kMaxCaptures);
    }
    rule_.variables.push_back(name);
    return {};
  }

  Result<void> lets() {
    const JsonNode* node = node_.find("let");
    if (node == nullptr) return {};
    if (node->kind != Json::Object) return not_a(*node, file_, "an object");
    for (std::size_t i = 0; i < node->keys.size(); ++i) {
      const JsonNode& value = node->items[i];
      if (value.kind != Json::String) return not_a(value, file_, "an expression (a string)");
      CKFS_TRY(Expression expression,
               at_line(Expression::parse(value.text, rule_.variables), value, file_));
      rule_.lets.push_back({rule_.variables.size(), std::move(expression)});
      CKFS_TRY_VOID(add_variable(node->keys[i], value));
    }
    return {};
  }

  Result<void> make() {
    CKFS_TRY_VOID(lets());
    CKFS_TRY(rule_.where, conditions(node_, "where", rule_.variables, file_));
    if (const JsonNode* node = node_.find("do")) {
      if (node->kind != Json::List || node->items.size() > kMaxNames) {
        return not_a(*node, file_, fmt::format("a list of at most {} operations", kMaxNames));
      }
      for (const JsonNode& item : node->items) {
        const JsonNode* unstacked = item.find("unstack");
        if (unstacked != nullptr && unstacked->kind == Json::String) {
          CKFS_TRY_VOID(add_variable(unstacked->text, *unstacked));
        }
        CKFS_TRY(Operation operation, Operation::parse(item, file_, rule_.variables, rule_.keys));
        rule_.operations.push_back(std::move(operation));
      }
    }
    CKFS_TRY(rule_.copy, flag(node_, "copy", file_));
    const JsonNode* names = node_.find("give");
    if (names == nullptr) {
      return fail(ErrorCode::Corrupt, "{}:{}: a rule that takes must give", file_, node_.line);
    }
    CKFS_TRY(const std::vector<const JsonNode*> texts, strings(*names, file_));
    for (const JsonNode* text : texts) {
      CKFS_TRY(Template name, at_line(Template::parse(text->text, rule_.variables), *text, file_));
      rule_.give.push_back(std::move(name));
    }
    if (const JsonNode* axes = node_.find("axes")) {
      CKFS_TRY(const std::vector<const JsonNode*> words, strings(*axes, file_));
      for (const JsonNode* word : words) rule_.axes.push_back(word->text);
    }
    CKFS_TRY_VOID(back());
    return check_keys(*names);
  }

  /// "back": false, "drop", a list of operations, or an object with one or both of "when" and "do".
  Result<void> back() {
    const JsonNode* node = node_.find("back");
    if (node == nullptr) return {};
    if (node->kind == Json::Boolean && node->number == 0) {
      rule_.back.skip = true;
      return {};
    }
    if (node->kind == Json::String) {
      rule_.back.drop = node->text == "drop";
      if (rule_.back.drop) return {};
      return fail(ErrorCode::Corrupt, "{}:{}: back: {} is not drop", file_, node->line,
                  quote(node->text));
    }
    const JsonNode* list = node;
    if (node->kind == Json::Object) {
      CKFS_TRY_VOID(only(*node, file_, {"when", "do"}));
      CKFS_TRY(rule_.back.when, conditions(*node, "when", {}, file_));
      list = node->find("do");
      if (list == nullptr) return {};
    }
    CKFS_TRY(rule_.back.operations, operations(*list));
    return {};
  }

  /// Operations that stack nothing: between them no tensor needs a number.
  Result<std::vector<Operation>> operations(const JsonNode& node) {
    if (node.kind != Json::List || node.items.size() > kMaxNames) {
      return not_a(node, file_, fmt::format("a list of at most {} operations", kMaxNames));
    }
    std::vector<Operation> found;
    std::vector<std::string> keys;
    for (const JsonNode& item : node.items) {
      CKFS_TRY(Operation operation, Operation::parse(item, file_, rule_.variables, keys));
      found.push_back(std::move(operation));
      if (keys.empty()) continue;
      return fail(ErrorCode::Corrupt, "{}:{}: nothing is stacked in back", file_, item.line);
    }
    return found;
  }

  static bool joins(const Operation& operation) {
    return operation.kind == Operation::Kind::Stack ||
           operation.kind == Operation::Kind::ConcatOver;
  }

  /// Which captures and `let` variables have one value for all tensors that go through the
  /// operations together: those in the names that are given, and what follows from them alone.
  std::vector<bool> common_variables() const {
    const bool stacks = std::ranges::any_of(rule_.operations, joins);
    const bool together = stacks || rule_.patterns.size() > 1;
    std::vector<bool> common(rule_.captures + rule_.lets.size(), !together);
    for (std::size_t i = 0; i < common.size(); ++i) {
      if (i >= rule_.captures) {
        const Expression& value = rule_.lets[i - rule_.captures].value;
        common[i] = !(together && value.needs_shape());
        for (std::size_t k = 0; k < i; ++k) common[i] = common[i] && (common[k] || !value.uses(k));
      }
      common[i] = common[i] || std::ranges::any_of(
                                   rule_.give, [i](const Template& name) { return name.uses(i); });
    }
    return common;
  }

  /// A stacked variable is a number and gone afterwards. No operation may use a variable in which
  /// its tensors differ: it gets one value for all of them.
  Result<void> check_keys(const JsonNode& names) {
    const std::vector<bool> common = common_variables();
    for (const Operation& operation : rule_.operations) {
      for (std::size_t variable = 0; variable < common.size(); ++variable) {
        const auto uses = [&](const Expression& number) { return number.uses(variable); };
        const bool is_used = uses(operation.dim) || uses(operation.operand) ||
                             (operation.count && uses(*operation.count)) ||
                             std::ranges::any_of(operation.numbers, uses);
        if (!is_used || common[variable]) continue;
        return fail(ErrorCode::Corrupt,
                    "{}:{}: the tensors of a result may differ in {}, so no operation has it",
                    file_, operation.line, rule_.variables[variable]);
      }
    }
    for (const Operation& operation : rule_.operations) {
      if (!joins(operation)) continue;
      const auto variable = static_cast<std::size_t>(
          std::ranges::find(rule_.variables, operation.variable) - rule_.variables.begin());
      if (variable < rule_.captures && !rule_.patterns.front().is_number(variable)) {
        return fail(ErrorCode::Corrupt, "{}:{}: {} is stacked, so its capture must be a number",
                    file_, operation.line, operation.variable);
      }
      if (std::ranges::any_of(rule_.give,
                              [&](const Template& name) { return name.uses(variable); })) {
        return fail(ErrorCode::Corrupt, "{}:{}: {} is stacked, so no result has it in its name",
                    file_, names.line, operation.variable);
      }
    }
    return {};
  }

  const JsonNode& node_;
  std::string_view file_;
  Rule rule_;
};

/// A list of rules, in which {"use": NAME} stands for those of another list, all with the
/// conditions of its `when`.
Result<RuleList> parse_rules(const JsonNode& node, std::string_view file, const Recipes& recipes) {
  if (node.kind != Json::List || node.items.empty() || node.items.size() > kMaxRules) {
    return not_a(node, file, fmt::format("a list of 1 to {} rules", kMaxRules));
  }
  RuleList list{.file = std::string(file), .rules = {}};
  const auto shared = std::make_shared<const std::string>(file);
  for (const JsonNode& item : node.items) {
    if (item.find("use") == nullptr) {
      CKFS_TRY(Rule rule, RuleParser(item, shared).parse());
      CKFS_TRY(const bool each, flag(item, "each", file));
      std::vector<Pattern> patterns;
      if (each) patterns = std::exchange(rule.patterns, {});
      for (Pattern& pattern : patterns) {
        list.rules.push_back(rule);
        list.rules.back().patterns.push_back(std::move(pattern));
      }
      if (!each) list.rules.push_back(std::move(rule));
    } else {
      CKFS_TRY_VOID(only(item, file, {"use", "when", "comment"}));
      CKFS_TRY(const std::vector<Condition> when, conditions(item, "when", {}, file));
      CKFS_TRY(const std::string name, text_of(item, "use", file, ""));
      const auto used = recipes.lists.find(name);
      if (used == recipes.lists.end()) {
        return fail(ErrorCode::Corrupt, "{}:{}: there is no list {} before this one", file,
                    item.line, quote(name));
      }
      for (Rule rule : used->second->get()) {
        rule.when.insert(rule.when.begin(), when.begin(), when.end());
        list.rules.push_back(std::move(rule));
      }
    }
    if (list.rules.size() > kMaxRules) {
      return fail(ErrorCode::Corrupt, "{}:{}: more than {} rules", file, item.line, kMaxRules);
    }
  }
  return list;
}

/// Adds the lists of a file; each may use earlier ones.
Result<void> parse_lists(const JsonNode& root, std::string_view file, Recipes& recipes) {
  const JsonNode* lists = root.find("lists");
  if (lists == nullptr) return {};
  if (lists->kind != Json::Object) return not_a(*lists, file, "an object");
  std::size_t listed = 0;
  for (std::size_t i = 0; i < lists->keys.size(); ++i) {
    CKFS_TRY(RuleList list, parse_rules(lists->items[i], file, recipes));
    // A list that uses another has a copy of its rules.
    listed += list.rules.size();
    if (listed > kMaxListed) {
      return fail(ErrorCode::Corrupt, "{}:{}: lists of more than {} rules", file,
                  lists->items[i].line, kMaxListed);
    }
    auto rules = std::make_shared<const Lazy<std::vector<Rule>>>(
        std::make_shared<const std::vector<Rule>>(std::move(list.rules)));
    if (!recipes.lists.emplace(lists->keys[i], std::move(rules)).second) {
      return fail(ErrorCode::Corrupt, "{}:{}: there is a list {} already", file,
                  lists->items[i].line, quote(lists->keys[i]));
    }
  }
  return {};
}

bool is_view_name(std::string_view name) {
  return !name.empty() && name.size() <= 100 && name.front() != '.' &&
         std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '+' || c == '-';
         });
}

Result<RecipeView> parse_view(const JsonNode& root, std::string_view file, const Recipes& recipes) {
  CKFS_TRY_VOID(
      only(root, file, {"view", "container", "from", "description", "comment", "lists", "rules"}));
  RecipeView view;
  CKFS_TRY(view.name, text_of(root, "view", file, ""));
  const JsonNode& name = *root.find("view");
  if (!is_view_name(view.name)) {
    return fail(ErrorCode::Corrupt, "{}:{}: {} is not a name of a view (letters, digits and ._+-)",
                file, name.line, quote(view.name));
  }
  CKFS_TRY(const std::string container, text_of(root, "container", file, "safetensors"));
  if (container == "orbax") {
    view.container = ContainerKind::Orbax;
  } else if (container != "safetensors") {
    return fail(ErrorCode::Corrupt, "{}:{}: container {} is neither safetensors nor orbax", file,
                root.find("container")->line, quote(container));
  }
  CKFS_TRY(view.from, text_of(root, "from", file, "bf16-safetensors"));
  const Result<ViewSpec> from = parse_view_spec(view.from, Recipes());
  if (!from) return fail(ErrorCode::Corrupt, "{}: from: {}", file, from.error().message());
  for (const std::string_view files : {"format", "max_shard"}) {
    if (!from->parameters.contains(files)) continue;
    return fail(ErrorCode::Corrupt, "{}: from: {}: {} is of that view's files, not of its tensors",
                file, view.from, files);
  }
  CKFS_TRY(view.description, text_of(root, "description", file, ""));
  const JsonNode* rules = root.find("rules");
  if (rules == nullptr) return fail(ErrorCode::Corrupt, "{}: has no rules", file);
  CKFS_TRY(view.rules, parse_rules(*rules, file, recipes));
  return view;
}

Result<std::vector<std::string_view>> parse_releases(const JsonNode& node, std::string_view file) {
  CKFS_TRY(const std::vector<const JsonNode*> names, strings(node, file));
  std::vector<std::string_view> releases;
  for (const std::string_view known : kMaxTextReleases) {
    if (std::ranges::find(names, known, &JsonNode::text) != names.end()) releases.push_back(known);
  }
  if (releases.size() == names.size() && !names.empty()) return releases;
  return fail(ErrorCode::Corrupt, "{}:{}: releases are some of: {}", file, node.line,
              fmt::join(kMaxTextReleases, ", "));
}

/// The member `config`: numbers that config.json may leave out.
Result<std::map<std::string, double>> parse_defaults(const JsonNode& node, std::string_view file) {
  std::map<std::string, double> numbers;
  const JsonNode* const config = node.find("config");
  if (config == nullptr) return numbers;
  if (config->kind != Json::Object) return not_a(*config, file, "an object");
  for (std::size_t i = 0; i < config->keys.size(); ++i) {
    if (config->items[i].kind != Json::Number) return not_a(config->items[i], file, "a number");
    numbers.emplace(config->keys[i], config->items[i].number);
  }
  return numbers;
}

Result<MaxTextTrees> parse_trees(const JsonNode& node, std::string_view file,
                                 const Recipes& recipes) {
  if (node.kind != Json::Object) return not_a(node, file, "an object");
  CKFS_TRY_VOID(only(node, file,
                     {"models", "where", "config", "by_config", "collections", "mtp", "multimodal",
                      "releases", "unscanned", "scanned", "comment"}));
  MaxTextTrees trees;
  if (const JsonNode* stems = node.find("models")) {
    CKFS_TRY(const std::vector<const JsonNode*> names, strings(*stems, file));
    for (const JsonNode* name : names) trees.stems.push_back(name->text);
  }
  CKFS_TRY(trees.where, conditions(node, "where", {}, file));
  CKFS_TRY(trees.config, parse_defaults(node, file));
  CKFS_TRY(trees.by_config, flag(node, "by_config", file));
  if (const JsonNode* collections = node.find("collections")) {
    CKFS_TRY(const std::vector<const JsonNode*> names, strings(*collections, file));
    for (const JsonNode* name : names) trees.collections.push_back(name->text);
  }
  CKFS_TRY(trees.mtp, flag(node, "mtp", file));
  CKFS_TRY(trees.multimodal, flag(node, "multimodal", file));
  if (const JsonNode* releases = node.find("releases")) {
    CKFS_TRY(trees.releases, parse_releases(*releases, file));
  }
  const JsonNode* unscanned = node.find("unscanned");
  const JsonNode* scanned = node.find("scanned");
  if (unscanned == nullptr) {
    return fail(ErrorCode::Corrupt, "{}:{}: maxtext has no unscanned", file, node.line);
  }
  CKFS_TRY(trees.unscanned, parse_rules(*unscanned, file, recipes));
  if (scanned != nullptr) {
    CKFS_TRY(trees.scanned, parse_rules(*scanned, file, recipes));
  }
  return trees;
}

Result<ProgramRules> parse_program(const JsonNode& node, std::string_view file,
                                   const Recipes& recipes) {
  if (node.kind != Json::Object) return not_a(node, file, "an object");
  CKFS_TRY_VOID(only(node, file, {"config", "read", "experts", "write", "keep", "comment"}));
  ProgramRules rules;
  CKFS_TRY(rules.config, parse_defaults(node, file));
  const JsonNode* const read = node.find("read");
  if (read == nullptr) return fail(ErrorCode::Corrupt, "{}:{}: has no read", file, node.line);
  CKFS_TRY(rules.read, parse_rules(*read, file, recipes));
  CKFS_TRY(rules.experts, text_of(node, "experts", file, ""));
  if (!rules.experts.empty() && std::ranges::find(kLayouts, rules.experts) == std::end(kLayouts)) {
    return fail(ErrorCode::Corrupt, "{}:{}: {} is not a layout of experts", file,
                node.find("experts")->line, quote(rules.experts));
  }
  if (const JsonNode* const write = node.find("write")) {
    CKFS_TRY(rules.write, parse_rules(*write, file, recipes));
  }
  if (const JsonNode* const keep = node.find("keep")) {
    CKFS_TRY(const std::vector<const JsonNode*> endings, strings(*keep, file));
    for (const JsonNode* ending : endings) rules.keep.push_back(ending->text);
  }
  return rules;
}

Result<ModelFamily> parse_family(const JsonNode& root, std::string_view file,
                                 const Recipes& recipes) {
  CKFS_TRY_VOID(only(root, file,
                     {"family", "comment", "lists", "experts", "maxtext", kPrograms[0],
                      kPrograms[1], kPrograms[2]}));
  ModelFamily family;
  family.file = file;
  const JsonNode& models = *root.find("family");
  if (models.kind != Json::List) return not_a(models, file, "a list of names");
  for (const JsonNode& model : models.items) {
    if (model.kind != Json::String) return not_a(model, file, "a string");
    family.models.push_back(model.text);
  }
  if (const JsonNode* trees = root.find("maxtext")) {
    CKFS_TRY(family.maxtext, parse_trees(*trees, file, recipes));
  }
  for (const std::string_view program : kPrograms) {
    const JsonNode* const node = root.find(program);
    if (node == nullptr) continue;
    CKFS_TRY(ProgramRules rules, parse_program(*node, file, recipes));
    family.programs.emplace(program, std::move(rules));
  }
  const JsonNode* experts = root.find("experts");
  if (experts == nullptr && (family.maxtext || !family.programs.empty())) {
    return family;
  }
  if (experts == nullptr || experts->kind != Json::Object) {
    return fail(ErrorCode::Corrupt, "{}: has no experts (an object)", file);
  }
  CKFS_TRY_VOID(only(*experts, file, {kLayouts[0], kLayouts[1], kLayouts[2]}));
  for (std::size_t i = 0; i < experts->keys.size(); ++i) {
    const JsonNode* layout = &experts->items[i];
    if (layout->kind == Json::String) {  // the same as another
      layout = experts->find(layout->text);
      if (layout == nullptr || layout->kind == Json::String) {
        return fail(ErrorCode::Corrupt, "{}:{}: {} is not a layout with rules", file,
                    experts->items[i].line, quote(experts->items[i].text));
      }
    }
    CKFS_TRY(RuleList rules, parse_rules(*layout, file, recipes));
    family.layouts.emplace(experts->keys[i], std::move(rules));
  }
  return family;
}

}  // namespace

Result<Recipes> add_recipe(Recipes recipes, std::string_view text, std::string_view file) {
  if (text.size() > kMaxRecipe) {
    return fail(ErrorCode::Corrupt, "{}: {} bytes (limit {})", file, text.size(), kMaxRecipe);
  }
  CKFS_TRY(const JsonNode root, parse_json_tree(text, file, JsonKeys::Unique));
  CKFS_TRY_VOID(parse_lists(root, file, recipes));
  if (root.find("family") != nullptr) {
    CKFS_TRY(ModelFamily family, parse_family(root, file, recipes));
    recipes.families.push_back(std::make_shared<const KnownFamily>(std::move(family)));
    return recipes;
  }
  if (root.find("view") == nullptr) {
    if (root.find("lists") != nullptr) {
      CKFS_TRY_VOID(only(root, file, {"lists", "comment"}));
      return recipes;
    }
    return fail(ErrorCode::Corrupt, "{}: is neither a view nor a family (no such member)", file);
  }
  CKFS_TRY(RecipeView view, parse_view(root, file, recipes));
  if (recipes.find_view(view.name) != nullptr) {
    return fail(ErrorCode::Corrupt, "{}: view {}: there is such a recipe already", file, view.name);
  }
  if (find_view_row(view.name) != nullptr) {
    return fail(ErrorCode::Corrupt, "{}: view {}: there is such a view already", file, view.name);
  }
  recipes.views.push_back(std::move(view));
  return recipes;
}

const RecipeView* Recipes::find_view(std::string_view name) const {
  const auto found = std::ranges::find(views, name, &RecipeView::name);
  return found == views.end() ? nullptr : &*found;
}

namespace {

/// Whether it is one of MaxText's names of such models: "deepseek3" of "deepseek3-671b".
bool is_stem_of(std::string_view stem, std::string_view name) {
  return name.starts_with(stem) && (name.size() == stem.size() || name[stem.size()] == '-');
}

bool has_stem_of(const KnownFamily& family, std::string_view name) {
  return std::ranges::any_of(family.stems,
                             [&](const std::string& stem) { return is_stem_of(stem, name); });
}

bool has_model(const KnownFamily& family, std::string_view name) {
  return std::ranges::find(family.models, name) != family.models.end();
}

}  // namespace

KnownFamily::KnownFamily(ModelFamily family)
    : models(family.models),
      stems(family.maxtext ? family.maxtext->stems : std::vector<std::string>()),
      rules(std::make_shared<const ModelFamily>(std::move(family))) {
  const ModelFamily& its = rules.get();
  if (!its.layouts.empty()) members.emplace_back("experts");
  if (its.maxtext) members.emplace_back("maxtext");
  for (const auto& [program, program_rules] : its.programs) members.push_back(program);
}

KnownFamily::KnownFamily(std::vector<std::string> its_models, std::vector<std::string> its_stems,
                         std::vector<std::string> its_members, Lazy<ModelFamily>::Make make)
    : models(std::move(its_models)),
      stems(std::move(its_stems)),
      members(std::move(its_members)),
      rules(std::move(make)) {}

bool KnownFamily::has(std::string_view member) const {
  return std::ranges::find(members, member) != members.end();
}

bool Recipes::knows_family() const {
  return std::ranges::any_of(families, [&](const auto& known) {
    return has_model(*known, family) || has_stem_of(*known, family);
  });
}

std::vector<std::string> Recipes::models(const ConfigNumbers& config) const {
  if (family.empty()) return config.families();
  std::vector<std::string> names{family};
  for (const auto& known : families) {
    if (has_stem_of(*known, family)) std::ranges::copy(known->models, std::back_inserter(names));
  }
  return names;
}

const ModelFamily* Recipes::find_layouts(const ConfigNumbers& config) const {
  for (const std::string& model : models(config)) {
    for (const auto& known : std::views::reverse(families)) {
      if (known->has("experts") && has_model(*known, model)) return &known->rules.get();
    }
  }
  return nullptr;
}

const ProgramRules* Recipes::find_program(std::string_view program,
                                          const ConfigNumbers& config) const {
  for (const std::string& model : models(config)) {
    for (const auto& known : std::views::reverse(families)) {
      if (known->has(program) && has_model(*known, model)) {
        return &known->rules.get().programs.find(program)->second;
      }
    }
  }
  return nullptr;
}

const ModelFamily* Recipes::find_maxtext(const ConfigNumbers& config) const {
  for (const auto& known : std::views::reverse(families)) {
    if (!family.empty() && has_stem_of(*known, family)) return &known->rules.get();
  }
  const auto fits = [&](const Condition& condition) {
    return condition.holds({.config = &config, .captures = {}}).value_or(false);
  };
  for (const std::string& model : models(config)) {
    for (const auto& known : std::views::reverse(families)) {
      if (!known->has("maxtext") || !has_model(*known, model)) continue;
      const ModelFamily& found = known->rules.get();
      if (std::ranges::all_of(found.maxtext->where, fits)) return &found;
    }
  }
  return nullptr;
}

}  // namespace ckfs
