// Which modules a configuration names: targets of groups, and what it ignores.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "format/quantization_config.h"

namespace ckfs {

/// A regular expression of Python as configurations use them: literals, '.', classes, \d \w \s \b,
/// groups, alternatives, repetition, anchors and look-ahead. Matching takes bounded time whatever
/// the pattern: one that would take longer matches nothing.
class ModulePattern {
 public:
  /// Not valid() where the pattern has something else in it.
  explicit ModulePattern(std::string_view pattern);
  ~ModulePattern();
  ModulePattern(ModulePattern&&) noexcept;
  ModulePattern& operator=(ModulePattern&&) noexcept;

  bool valid() const { return root_ != nullptr; }
  /// As Python's re.match(): from the beginning of `name`, not necessarily to its end.
  bool matches(std::string_view name) const;

  struct Node;  // of module_pattern.cc

 private:
  std::unique_ptr<const Node> root_;
};

/// The targets of a configuration's groups against the modules of a checkpoint. A target is the
/// name of a module, or "re:" and a pattern, or the name of a class ("Linear"), which tensors do
/// not show.
class ModuleTargets {
 public:
  /// Keeps a reference to the configuration.
  explicit ModuleTargets(const QuantizationConfig& config);

  /// The group that speaks of a quantized module: by its name, else by a pattern, else the first
  /// with the name of a class. nullptr: none.
  const QuantizationGroup* find(std::string_view module) const;
  /// What calls the module quantized where nothing ignores it: the name of a class does not count.
  enum class Call : std::uint8_t { None, Pattern, Name };
  Call calls_quantized(std::string_view module) const;

  /// Takes note of a quantized module.
  void saw(std::string_view module);
  /// The names and patterns that none of the modules that were seen has.
  std::vector<std::string> without_match() const;

 private:
  struct Target {
    enum class Kind : std::uint8_t { Name, Pattern, Class };
    std::string text;
    Kind kind = Kind::Name;
    ModulePattern pattern;
    const QuantizationGroup* group = nullptr;  // nullptr: ignored
    bool matched = false;

    bool matches(std::string_view module) const;
  };
  static Target make(std::string_view text, const QuantizationGroup* group);

  std::vector<Target> targets_, ignored_;
};

}  // namespace ckfs
