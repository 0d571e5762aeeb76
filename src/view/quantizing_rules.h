// Which tensors a tool quantizes, in which form, and the configuration that it writes: one table
// for each tool.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "encoding/quantizer.h"
#include "format/module_pattern.h"
#include "view/view.h"

namespace ckfs {

/// Names of modules, and patterns of Python behind "re:", as configurations have them.
class ModuleList {
 public:
  ModuleList() = default;
  /// Errors: InvalidArgument (a pattern that is not understood).
  static Result<ModuleList> make(std::vector<std::string> entries);

  bool empty() const { return entries_.empty(); }
  /// The first entry that is or matches the module; nullptr: none. Adds its cost to `steps`.
  const std::string* find(std::string_view module, std::size_t& steps) const;
  std::vector<std::string> texts() const;

 private:
  struct Entry {
    enum class Kind : std::uint8_t { Name, Contains, Ends, Pattern };
    std::string text;
    Kind kind = Kind::Name;
    std::string_view word;  // in `text`: what a pattern of the commonest forms looks for
    ModulePattern pattern{""};
  };
  std::vector<Entry> entries_;
};

/// What a tool does with a tensor.
struct ToolVerdict {
  enum class Kind : std::uint8_t {
    Quantize,
    Leave,   // `text`: by which rule; empty: it is not a weight
    Refuse,  // `text`: why
  };
  /// Which of the view's parameters makes it so.
  enum class By : std::uint8_t { Tool, Ignore, Only };
  Kind kind = Kind::Leave;
  std::string text = {};
  By by = By::Tool;
};

/// Names of tensors that stay as they are: all, and those that a parameter leaves out.
struct LeftNames {
  std::vector<std::string> all;
  std::vector<std::string> by_ignore, by_only;  // modules
};

/// A tool with its parameters. Immutable, but counts the steps of its patterns: not for concurrent
/// use.
class QuantizingTool {
 public:
  virtual ~QuantizingTool() = default;

  /// "slime 624b824".
  virtual std::string text() const = 0;
  virtual QuantizedForm form() const = 0;
  virtual QuantizedGranule granule() const = 0;

  /// The tool's decision on a tensor of the plain view, without a look at dtypes and sizes.
  ToolVerdict judge(std::string_view name, std::size_t dimensions) const;
  /// The name of an output of the weight `name`.
  virtual std::string output_name(std::string_view name, std::string_view suffix) const;
  /// Whether all of the model is BF16 first.
  virtual bool casts_all() const { return false; }
  /// Whether fused experts are split first.
  virtual bool splits_experts() const { return false; }

  /// Which weights share a largest value: for each weight, those that its set has, by name,
  /// whether they are quantized or not; empty: it has a value of its own. Of forms that need one.
  virtual std::vector<std::string> set_of(std::string_view /*name*/) const { return {}; }

  /// The text of quantization_config.
  virtual std::string configuration(const LeftNames& left) const = 0;

  /// Errors: InvalidArgument: the patterns took too many steps, so answers are wrong.
  Result<void> check() const;

 protected:
  QuantizingTool(ModuleList ignored, std::optional<ModuleList> only)
      : ignored_(std::move(ignored)), only_(std::move(only)) {}
  /// By the tool's own rule, before `ignore` and `only`.
  virtual ToolVerdict rule(std::string_view name, std::size_t dimensions,
                           std::size_t& steps) const = 0;
  const ModuleList& ignored() const { return ignored_; }

 private:
  const ModuleList ignored_;  // of the parameter `ignore`
  const std::optional<ModuleList> only_;
  mutable std::size_t steps_ = 0;
};

/// The module of a weight: its name without a last word "weight".
std::string_view module_of_weight(std::string_view name);

/// Errors: InvalidArgument: parameters that do not go together, patterns that are not understood.
Result<std::unique_ptr<const QuantizingTool>> quantizing_tool(const ViewSpec& spec);

}  // namespace ckfs
