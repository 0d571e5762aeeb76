// std::regex would do for honest patterns, but it recurses for every character of a name and takes
// exponential time for some patterns, and both come from a file. So: a small backtracking matcher
// that counts its steps.
#include "format/module_pattern.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <optional>
#include <type_traits>
#include <utility>

namespace ckfs {

using Characters = std::bitset<256>;

/// One element of a pattern and what follows it: a list through `next`.
struct ModulePattern::Node {
  enum class Kind : std::uint8_t { Set, Group, Begin, End, WordBorder, LookAhead, NoLookAhead };
  Kind kind = Kind::Set;
  Characters set;                                   // of Set
  std::vector<std::unique_ptr<Node>> alternatives;  // of groups; nullptr: the empty one
  std::uint32_t least = 1, most = 1;                // turns of Set and Group
  bool lazy = false;
  std::unique_ptr<Node> next;
};

namespace {

using Node = ModulePattern::Node;

constexpr std::uint32_t kMostTurns = 1000;
constexpr int kMaxGroupDepth = 20;                            // of groups
constexpr std::size_t kMaxPattern = 4096;                     // bytes
constexpr std::size_t kMaxSteps = 20'000;                     // of one match
constexpr std::size_t kMaxPatterns = std::size_t{256} << 10;  // bytes of all patterns
constexpr int kMaxFrames = 1000;                              // of the matcher's recursion

Characters range(unsigned first, unsigned last) {
  Characters set;
  for (unsigned c = first; c <= last; ++c) set.set(c);
  return set;
}

const Characters& word_characters() {
  static const Characters all =
      range('a', 'z') | range('A', 'Z') | range('0', '9') | range('_', '_') | range(128, 255);
  return all;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::unique_ptr<Node> parse() {
    if (text_.size() > kMaxPattern) return nullptr;
    auto group = alternatives(0);
    return good_ && at_ == text_.size() ? std::move(group) : nullptr;
  }

 private:
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  std::unique_ptr<Node> alternatives(int depth) {
    auto group = std::make_unique<Node>();
    group->kind = Node::Kind::Group;
    if (depth > kMaxGroupDepth) good_ = false;
    // The first of several empty patterns is enough: they take no step, and there may be thousands.
    bool has_empty = false;
    do {
      auto one = sequence(depth);
      const bool is_empty = one == nullptr;
      if (!is_empty || !has_empty) group->alternatives.push_back(std::move(one));
      has_empty = has_empty || is_empty;
    } while (good_ && take('|'));
    return group;
  }

  std::unique_ptr<Node> sequence(int depth) {
    std::unique_ptr<Node> first;
    std::unique_ptr<Node>* end = &first;
    while (good_ && at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')') {
      *end = atom(depth);
      if (!good_) break;
      repeat(**end);
      end = &(*end)->next;
    }
    return first;
  }

  std::unique_ptr<Node> atom(int depth) {
    auto node = std::make_unique<Node>();
    const char c = text_[at_++];
    if (c == '^') {
      node->kind = Node::Kind::Begin;
    } else if (c == '$') {
      node->kind = Node::Kind::End;
    } else if (c == '.') {
      node->set = ~range('\n', '\n');
    } else if (c == '(') {
      Node::Kind kind = Node::Kind::Group;
      if (take("?=")) {
        kind = Node::Kind::LookAhead;
      } else if (take("?!")) {
        kind = Node::Kind::NoLookAhead;
      } else if (take("?P<")) {
        const std::size_t close = text_.find('>', at_);
        good_ = close != std::string_view::npos;
        at_ = good_ ? close + 1 : text_.size();
      } else if (!take("?:") && at_ < text_.size() && text_[at_] == '?') {
        good_ = false;
      }
      if (good_) node = alternatives(depth + 1);
      node->kind = kind;
      good_ = good_ && take(')');
    } else if (c == '[') {
      node->set = bracket();
    } else if (c == '\\') {
      if (take('b')) {
        node->kind = Node::Kind::WordBorder;
      } else {
        node->set = escape();
      }
    } else if (c == '*' || c == '+' || c == '?') {
      good_ = false;
    } else {
      node->set.set(static_cast<unsigned char>(c));
    }
    return node;
  }

  /// The characters after a backslash.
  Characters escape() {
    if (at_ >= text_.size()) {
      good_ = false;
      return {};
    }
    const char c = text_[at_++];
    switch (c) {
      case 'd':
        return range('0', '9');
      case 'D':
        return ~range('0', '9');
      case 'w':
        return word_characters();
      case 'W':
        return ~word_characters();
      case 's':
        return range('\t', '\r') | range(' ', ' ');
      case 'S':
        return ~(range('\t', '\r') | range(' ', ' '));
      default:
        break;
    }
    // Letters and digits mean something else in Python, or nothing.
    if (range('a', 'z')[static_cast<unsigned char>(c)] ||
        range('A', 'Z')[static_cast<unsigned char>(c)] ||
        range('0', '9')[static_cast<unsigned char>(c)]) {
      good_ = false;
    }
    return range(static_cast<unsigned char>(c), static_cast<unsigned char>(c));
  }

  Characters bracket() {
    Characters set;
    const bool inverted = take('^');
    for (bool first = true; good_; first = false) {
      if (at_ >= text_.size()) {
        good_ = false;
      } else if (!first && take(']')) {
        break;
      } else if (take('\\')) {
        set |= escape();
        // A range that begins with it, or an error in Python.
        const std::string_view rest = text_.substr(at_);
        good_ = good_ && (!rest.starts_with('-') || rest.starts_with("-]"));
      } else {
        const auto low = static_cast<unsigned char>(text_[at_++]);
        unsigned high = low;
        if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
          high = static_cast<unsigned char>(text_[at_ + 1]);
          good_ = high != '\\' && high >= low;
          at_ += 2;
        }
        set |= range(low, high);
      }
    }
    return inverted ? ~set : set;
  }

  void repeat(Node& node) {
    std::uint32_t least = 0, most = kMostTurns;
    if (take('*')) {
    } else if (take('+')) {
      least = 1;
    } else if (take('?')) {
      most = 1;
    } else if (at_ < text_.size() && text_[at_] == '{') {
      ++at_;
      least = at_ < text_.size() && text_[at_] == ',' ? 0 : number();
      most = take(',') ? (at_ < text_.size() && text_[at_] == '}' ? kMostTurns : number()) : least;
      good_ = good_ && take('}') && least <= most && most <= kMostTurns;
    } else {
      return;
    }
    good_ = good_ && (node.kind == Node::Kind::Set || node.kind == Node::Kind::Group);
    node.least = least;
    node.most = most;
    node.lazy = take('?');
    // A repetition of a repetition is an error in Python.
    if (at_ < text_.size() && (text_[at_] == '*' || text_[at_] == '+')) good_ = false;
  }

  std::uint32_t number() {
    std::uint32_t value = 0;
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9' && value <= kMostTurns) {
      value = value * 10 + static_cast<std::uint32_t>(text_[at_++] - '0');
    }
    good_ = good_ && at_ > begin;
    return value;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool good_ = true;
};

class Matcher {
 public:
  explicit Matcher(std::string_view name) : name_(name) {}

  bool run(const Node& root) {
    return group(root, 0, [](std::size_t) { return true; }) && !exhausted_;
  }

  std::size_t steps() const { return steps_ + 1; }

 private:
  /// The rest that has to match: a reference to a function, which a std::function would copy to the
  /// heap at each step.
  class Then {
   public:
    template <typename Function>
      requires(!std::is_same_v<Function, Then>)
    Then(const Function& function)  // NOLINT(google-explicit-constructor)
        : function_(&function), call_([](const void* called, std::size_t at) {
            return (*static_cast<const Function*>(called))(at);
          }) {}

    bool operator()(std::size_t at) const { return call_(function_, at); }

   private:
    const void* function_;
    bool (*call_)(const void*, std::size_t);
  };

  bool list(const Node* node, std::size_t at, const Then& then) {
    if (node == nullptr) return then(at);
    if (++steps_ > kMaxSteps || frames_ >= kMaxFrames) exhausted_ = true;
    if (exhausted_) return false;
    ++frames_;
    const bool found = one(*node, at, then);
    --frames_;
    return found;
  }

  bool one(const Node& node, std::size_t at, const Then& then) {
    const auto rest = [&](std::size_t end) { return list(node.next.get(), end, then); };
    switch (node.kind) {
      case Node::Kind::Set:
        return set(node, at, rest);
      case Node::Kind::Group:
        return turns(node, at, 0, rest);
      case Node::Kind::Begin:
        return at == 0 && rest(at);
      case Node::Kind::End:
        return at == name_.size() && rest(at);
      case Node::Kind::WordBorder:
        return is_word(at) != (at > 0 && is_word(at - 1)) && rest(at);
      case Node::Kind::LookAhead:
        return group(node, at, [](std::size_t) { return true; }) && rest(at);
      case Node::Kind::NoLookAhead:
        return !group(node, at, [](std::size_t) { return true; }) && !exhausted_ && rest(at);
    }
    return false;
  }

  bool is_word(std::size_t at) const {
    return at < name_.size() && word_characters()[static_cast<unsigned char>(name_[at])];
  }

  bool set(const Node& node, std::size_t at, const Then& rest) {
    std::size_t most = 0;
    while (most < node.most && at + most < name_.size() &&
           node.set[static_cast<unsigned char>(name_[at + most])]) {
      ++most;
    }
    steps_ += most / 16;  // a character costs less than a step
    for (std::size_t turn = node.least; turn <= most; ++turn) {
      if (rest(at + (node.lazy ? turn : most - (turn - node.least)))) return true;
      if (exhausted_) return false;
    }
    return false;
  }

  bool group(const Node& node, std::size_t at, const Then& then) {
    return std::ranges::any_of(node.alternatives, [&](const std::unique_ptr<Node>& alternative) {
      return list(alternative.get(), at, then);
    });
  }

  bool turns(const Node& node, std::size_t at, std::uint32_t done, const Then& rest) {
    if (++steps_ > kMaxSteps || frames_ >= kMaxFrames) exhausted_ = true;
    if (exhausted_) return false;
    ++frames_;
    const auto again = [&] {
      return done < node.most && group(
                                     node, at,
                                     [&](std::size_t end) {
                                       // A turn that takes no character would never end.
                                       return (end > at || done < node.least) &&
                                              turns(node, end, done + 1, rest);
                                     });
    };
    const auto stop = [&] { return done >= node.least && rest(at); };
    const bool found = node.lazy ? stop() || again() : again() || stop();
    --frames_;
    return found;
  }

  std::string_view name_;
  std::size_t steps_ = 0;
  int frames_ = 0;
  bool exhausted_ = false;
};

}  // namespace

ModulePattern::ModulePattern(std::string_view pattern) : root_(Parser(pattern).parse()) {}
ModulePattern::~ModulePattern() = default;
ModulePattern::ModulePattern(ModulePattern&&) noexcept = default;
ModulePattern& ModulePattern::operator=(ModulePattern&&) noexcept = default;

bool ModulePattern::matches(std::string_view name) const {
  std::size_t steps = 0;
  return matches(name, steps);
}

bool ModulePattern::matches(std::string_view name, std::size_t& steps) const {
  if (root_ == nullptr) return false;
  Matcher matcher(name);
  const bool found = matcher.run(*root_);
  steps += matcher.steps();
  return found;
}

bool ModuleTargets::any_pattern_matches(const Targets& targets, std::string_view module) const {
  for (const std::size_t i : targets.patterns) {
    if (exhausted()) break;
    if (targets.all[i].pattern.matches(module, steps_)) return true;
  }
  return false;
}

std::optional<std::size_t> ModuleTargets::named(std::string_view module) const {
  if (targets_.names.empty()) return std::nullopt;
  while (true) {
    const auto name = targets_.names.find(module);
    if (name != targets_.names.end()) return name->second;
    const std::size_t dot = module.rfind('.');
    if (dot == std::string_view::npos || exhausted()) return std::nullopt;
    module = module.substr(0, dot);
    // A name may consist of dots alone, and the targets may be nearly the same.
    steps_ += 16 + module.size() / 16;
  }
}

void ModuleTargets::add(Targets& targets, std::string_view text, const QuantizationGroup* group) {
  constexpr std::string_view kPattern = "re:";
  const bool is_pattern = text.starts_with(kPattern);
  const bool is_class = !is_pattern && text.find('.') == std::string_view::npos && !text.empty() &&
                        text.front() >= 'A' && text.front() <= 'Z';
  if (is_pattern) pattern_bytes_ += text.size();
  const bool is_too_much = pattern_bytes_ > kMaxPatterns;
  ModulePattern pattern(is_pattern && !is_too_much ? text.substr(kPattern.size()) : "");
  const std::size_t number = targets.all.size();
  // Of equal names the first counts. The others would cost a look for each module of that name.
  if (!is_pattern && !is_class && !targets.names.emplace(text, number).second) return;
  targets.all.push_back({.text = std::string(text),
                         .kind = is_pattern ? Target::Kind::Pattern
                                 : is_class ? Target::Kind::Class
                                            : Target::Kind::Name,
                         .pattern = std::move(pattern),
                         .group = group});
  if (is_pattern) {
    // A pattern that matches nothing costs no step, but would be tried for each module.
    if (!is_too_much && targets.all.back().pattern.valid()) targets.patterns.push_back(number);
  } else if (is_class && !targets.first_class) {
    targets.first_class = number;
  }
}

ModuleTargets::ModuleTargets(const QuantizationConfig& config, std::size_t most_steps,
                             std::size_t steps)
    : file_(config.file), most_steps_(most_steps), steps_(steps) {
  for (const QuantizationGroup& group : config.groups) {
    for (const std::string& target : group.targets) add(targets_, target, &group);
  }
  for (const std::string& name : config.ignore) add(ignored_, name, nullptr);
}

const QuantizationGroup* ModuleTargets::find(std::string_view module) const {
  if (const auto name = named(module)) return targets_.all[*name].group;
  for (const std::size_t i : targets_.patterns) {
    if (exhausted()) break;
    if (targets_.all[i].pattern.matches(module, steps_)) return targets_.all[i].group;
  }
  return targets_.first_class ? targets_.all[*targets_.first_class].group : nullptr;
}

ModuleTargets::Call ModuleTargets::calls_quantized(std::string_view module) const {
  Call call = targets_.names.contains(module) ? Call::Name : Call::None;
  if (call == Call::None && any_pattern_matches(targets_, module)) call = Call::Pattern;
  const bool is_ignored = call != Call::None && (ignored_.names.contains(module) ||
                                                 any_pattern_matches(ignored_, module));
  return is_ignored ? Call::None : call;
}

void ModuleTargets::saw(std::string_view module) {
  if (const auto name = named(module)) targets_.all[*name].matched = true;
  for (const std::size_t i : targets_.patterns) {
    if (exhausted()) break;
    Target& target = targets_.all[i];
    target.matched = target.matched || target.pattern.matches(module, steps_);
  }
}

std::vector<std::string> ModuleTargets::without_match() const {
  std::vector<std::string> found;
  for (const Target& target : targets_.all) {
    const bool can_match = target.kind == Target::Kind::Name ||
                           (target.kind == Target::Kind::Pattern && target.pattern.valid());
    if (can_match && !target.matched) found.push_back(target.text);
  }
  return found;
}

Result<void> ModuleTargets::check() const {
  if (pattern_bytes_ > kMaxPatterns) {
    return fail(ErrorCode::Corrupt, "{}: {} bytes of patterns (limit {})", file_, pattern_bytes_,
                kMaxPatterns);
  }
  if (exhausted_) {
    return fail(ErrorCode::Corrupt,
                "{}: its targets need more than {} steps for the modules here (with those of other "
                "folders)",
                file_, most_steps_);
  }
  return {};
}

}  // namespace ckfs
