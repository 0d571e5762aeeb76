// Which modules a configuration names: targets of groups, and ignored ones.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "format/quantization_config.h"

namespace ckfs {

/// A regular expression of Python as configurations use them: literals, '.', classes, \d \w \s \b,
/// groups, alternatives, repetition (1,000 times at most, also by * and +), anchors and look-ahead.
/// Matching takes bounded time whatever the pattern: one that would take longer matches nothing.
class ModulePattern {
 public:
  /// Not valid() where the pattern has something else in it, or is too long or nested too deep:
  /// then it matches nothing.
  explicit ModulePattern(std::string_view pattern);
  ~ModulePattern();
  ModulePattern(ModulePattern&&) noexcept;
  ModulePattern& operator=(ModulePattern&&) noexcept;

  bool valid() const { return root_ != nullptr; }
  /// As Python's re.match(): from the beginning of `name`, not necessarily to its end.
  bool matches(std::string_view name) const;
  /// The same, and adds its cost to `steps`.
  bool matches(std::string_view name, std::size_t& steps) const;

  struct Node;  // of module_pattern.cc

 private:
  std::unique_ptr<const Node> root_;
};

/// The targets of a configuration's groups against the modules of a checkpoint. A target is the
/// name of a module or of a module around it (ModelOpt names all experts of a layer as
/// "mlp.experts"), or "re:" and a pattern, or the name of a class ("Linear"), which tensors do not
/// show. Not for concurrent use.
class ModuleTargets {
 public:
  /// Of all matches of one checkpoint, and looks for what a module is in: some fifteen patterns
  /// that begin with ".*" for each of 100,000 modules, which are asked for four times, or four
  /// seconds. Behind them no pattern matches.
  static constexpr std::size_t kMostSteps = std::size_t{1} << 28;

  /// Keeps a reference to the configuration. `steps`: those that the checkpoint's other
  /// configurations have taken.
  explicit ModuleTargets(const QuantizationConfig& config, std::size_t most_steps = kMostSteps,
                         std::size_t steps = 0);

  /// The group that speaks of a quantized module: by its name, else that of the nearest thing that
  /// it is in, else by a pattern, else the first with the name of a class. nullptr: none.
  const QuantizationGroup* find(std::string_view module) const;
  /// What calls the module quantized where nothing ignores it. The name of a class, or of a module
  /// around it, does not count.
  enum class Call : std::uint8_t { None, Pattern, Name };
  Call calls_quantized(std::string_view module) const;

  /// Takes note of a quantized module.
  void saw(std::string_view module);
  /// Call it after all questions, and before relying on an answer. Errors: Corrupt (patterns that
  /// are too long together, or that took too many steps: the answers are then wrong).
  Result<void> check() const;
  /// The names and valid patterns that none of the modules that were seen has.
  std::vector<std::string> without_match() const;
  /// Those of others and of all matches so far.
  std::size_t steps() const { return steps_; }

 private:
  const std::string file_;
  const std::size_t most_steps_;
  struct Target {
    enum class Kind : std::uint8_t { Name, Pattern, Class };
    std::string text;
    Kind kind = Kind::Name;
    ModulePattern pattern;
    const QuantizationGroup* group = nullptr;  // nullptr: ignored
    bool matched = false;
  };
  /// Targets, of equal names the first, and where they are: names by themselves, for there may be
  /// as many as modules.
  struct Targets {
    std::vector<Target> all;
    std::map<std::string, std::size_t, std::less<>> names;
    std::vector<std::size_t> patterns;
    std::optional<std::size_t> first_class;
  };

  void add(Targets& targets, std::string_view text, const QuantizationGroup* group);
  /// Asked before each step: then an answer is wrong.
  bool exhausted() const {
    exhausted_ = exhausted_ || steps_ >= most_steps_;
    return exhausted_;
  }
  /// The target that names the module, or else the nearest thing that it is in.
  std::optional<std::size_t> named(std::string_view module) const;
  bool any_pattern_matches(const Targets& targets, std::string_view module) const;

  Targets targets_, ignored_;
  std::size_t pattern_bytes_ = 0;
  mutable std::size_t steps_;
  mutable bool exhausted_ = false;
};

}  // namespace ckfs
