// Numbers in recipes: "2 * $moe_intermediate_size", "n % 2", "1 / sqrt($head_dim)".
//
//   1, 0.5         numbers
//   e              a capture or variable of the rule that is a number
//   $hidden_size   a number of config.json: dotted path; if not at the top level, looked for
//                  in text_config and the like. true is 1, false is 0
//                  $layer_types.length: the number of items of a list
//                  $compress_ratios[i]: one of them, counted from 0
//                  $view.mtp: a number of the view that the rules make, not of config.json
//   dim(0), rank() of the tensor
//   sqrt(x), min(x, y), max(x, y)
//   f32(x), f16(x), bf16(x)  rounded to that dtype
//   -x  * / // %   // and % round towards minus infinity
//   + -
//   ??             the right side where the left one needs a number that config.json does not have
//
// Arithmetic is that of doubles; whole numbers up to 2^53 are exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "format/json_tree.h"

namespace ckfs {

/// The numbers and words of a config.json that recipes ask for. Safe for concurrent use while none
/// is set.
class ConfigNumbers {
 public:
  /// Without a config.json: no number is known, nor that there is none.
  ConfigNumbers() = default;
  /// Errors: Corrupt.
  static Result<ConfigNumbers> parse(std::string_view config, std::string_view file_name);

  /// Numbers that go before those of config.json ("view.mtp"), and after them (what a model's code
  /// takes where config.json says nothing).
  void set(std::string_view path, double number) {
    set_.insert_or_assign(std::string(path), number);
  }
  void set_default(std::string_view path, double number) {
    defaults_.insert_or_assign(std::string(path), number);
  }

  /// nullopt: no such number.
  std::optional<double> number(std::string_view path) const;
  /// Whether it is known what number() says: there is a config.json, or the number was set (not as
  /// a default).
  bool knows(std::string_view path) const { return present_ || set_.contains(path); }
  /// Says that where there is no config.json, what is not known is not held either: `shape`.
  void leave_open() { open_ = !present_; }
  bool is_open() const { return open_; }
  /// An item of a list. nullopt: no such list or item, or no number.
  std::optional<double> number(std::string_view path, double index) const;
  /// nullopt: no such string.
  std::optional<std::string> text(std::string_view path) const;
  std::optional<std::string> text(std::string_view path, double index) const;
  /// A word that goes before that of config.json ("view.dtype").
  void set_text(std::string_view path, std::string_view word) {
    texts_.insert_or_assign(std::string(path), word);
  }
  /// Every model_type from the top down, then the names in `architectures`.
  std::vector<std::string> families() const;

 private:
  using Numbers = std::map<std::string, double, std::less<>>;

  const JsonNode* find(std::string_view path, JsonNode::Kind kind, JsonNode::Kind or_kind) const;
  const JsonNode* find_item(std::string_view path, double index) const;

  JsonNode root_;
  bool present_ = false;  // there is a config.json
  bool open_ = false;
  Numbers set_, defaults_;
  std::map<std::string, std::string, std::less<>> texts_;
};

/// What an expression is evaluated over.
struct Scope {
  const ConfigNumbers* config = nullptr;
  std::span<const std::optional<double>> captures;  // by number; nullopt: none, or no number
  std::optional<std::span<const std::int64_t>> shape = {};  // nullopt: not known
};

/// Immutable; safe for concurrent use. The default is 0.
class Expression {
 public:
  /// `names` are the captures that it may use, by number. Errors: Corrupt.
  static Result<Expression> parse(std::string_view text, std::span<const std::string> names);
  /// A number by itself.
  static Expression of(double number);

  /// Errors: InvalidArgument (a number that config.json does not have, a capture that is not a
  /// number, no shape or no such dimension, a result that is not finite).
  Result<double> evaluate(const Scope& scope) const;
  /// The same, for a value that must be a whole number. Errors: also InvalidArgument (it is not).
  Result<std::int64_t> evaluate_whole(const Scope& scope) const;

  bool uses(std::size_t capture) const;
  const std::string& text() const { return text_; }

  /// The numbers of config.json that its value depends on and that `config` does not know.
  std::set<std::string> unknowns(const ConfigNumbers& config) const;
  /// What number of config.json makes it `value`, where it is the only one that is not known and
  /// the expression is linear in it: path and number. Requires: scope.config.
  std::optional<std::pair<std::string, double>> solve(double value, const Scope& scope) const;
  /// Whether it asks for the tensor's shape: dim() or rank().
  bool needs_shape() const;
  /// The dimension that it is: "dim(1)", of a whole number.
  std::optional<std::size_t> is_dim() const;

 private:
  friend class ExpressionParser;
  enum class Kind : std::uint8_t {
    Number,
    Capture,
    Config,
    Rank,
    Dim,   // from here on one operand
    Item,  // of config.json, at that index
    Sqrt,
    ToF32,
    ToF16,
    ToBf16,
    Negate,
    Min,  // from here on two
    Max,
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Otherwise,
  };
  struct Node {
    Kind kind = Kind::Number;
    double number = 0;
    std::size_t capture = 0;
    std::string path = {};
    std::size_t left = 0, right = 0;  // earlier nodes
  };
  /// How many of `left` and `right` a node has.
  static std::size_t operands(Kind kind);
  Result<double> evaluate(std::size_t node, const Scope& scope) const;
  Failure no_shape() const;
  /// Whether its value needs a number that config.json does not have.
  bool lacks_number(std::size_t node, const Scope& scope) const;
  void add_unknowns(std::size_t node, const ConfigNumbers& config,
                    std::set<std::string>& found) const;

  std::vector<Node> nodes_{{}};  // the last is the root
  std::string text_ = "0";
};

/// "dim(1) = 2 * $moe_intermediate_size", with one of = != < <= > >=; or a string of config.json:
/// "$quantization_config.quant_method = 'mxfp4'", "$layer_types[i] = 'full_attention'", with = or
/// !=. A string that is not there is none.
class Condition {
 public:
  /// Errors: Corrupt.
  static Result<Condition> parse(std::string_view text, std::span<const std::string> names);
  /// Errors: InvalidArgument.
  Result<bool> holds(const Scope& scope) const;
  /// As Expression::unknowns().
  std::set<std::string> unknowns(const ConfigNumbers& config) const;

 private:
  enum class Relation : std::uint8_t { Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual };
  Expression left_, right_;
  Relation relation_ = Relation::Equal;
  std::string path_ = {}, word_ = {};  // where a string is compared
  std::optional<Expression> index_;    // the string is that item of a list
};

}  // namespace ckfs
