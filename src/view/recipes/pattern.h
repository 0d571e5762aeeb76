// Names of tensors with holes: those that a rule takes, and those of its results.
//
//   {e}            a number: decimal digits without leading zeros, at most kMaxNumber
//   {x:*}          one part of a name: at least one character, no dot
//   {x:**}         any text, also none; as little as fits
//   {x:gate|up}    one of these words
//
// As a template, {…} holds an expression over captures and the numbers of config.json
// (expression.h): {e}, {n - $first_k_dense_replace}.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "view/recipes/expression.h"

namespace ckfs {

/// Captures of a rule, by number.
using CaptureNames = std::vector<std::string>;

inline constexpr std::size_t kMaxCaptures = 8;  // of a rule
inline constexpr std::uint64_t kMaxNumber = 999'999'999;

/// What matching one name gives: the text of each capture that the pattern has. Views into the
/// name.
using Captured = std::vector<std::string_view>;

/// Immutable; safe for concurrent use.
class Pattern {
 public:
  enum class Hole : std::uint8_t { Number, Part, Text, Words };

  /// Adds its captures to `names` (the same name in two patterns of a rule is one capture; twice in
  /// one pattern is an error). Errors: Corrupt.
  static Result<Pattern> parse(std::string_view text, CaptureNames& names);

  /// Whether `name` fits; then captured[i] is the text of capture number i. Keeps the elements of
  /// captures that the pattern has not; its own may change where the name does not fit, too.
  /// Requires: `captured` has a place for each capture of the rule.
  bool match(std::string_view name, Captured& captured) const;

  /// The name that has these texts in its holes.
  std::string fill(const Captured& captured) const;

  const std::string& text() const { return text_; }
  /// Whether it has that capture, and the capture's kind.
  bool has(std::size_t capture) const;
  bool is_number(std::size_t capture) const;

 private:
  struct TextAndHole {
    std::string before;  // literal text before the hole
    Hole hole = Hole::Number;
    std::size_t capture = 0;
    std::vector<std::string> words = {};  // of Hole::Words
  };

  friend class Template;

  Result<void> check_open_holes() const;
  class Matching;

  std::string text_;
  std::vector<TextAndHole> pieces_;
  std::string tail_;  // literal text behind the last hole
};

/// A name with expressions in it. Immutable.
class Template {
 public:
  /// Errors: Corrupt.
  static Result<Template> parse(std::string_view text, const CaptureNames& names);

  /// Variables without a text in `captured` are filled in as numbers of `scope`. Errors:
  /// InvalidArgument (not a whole number from 0 to kMaxNumber, a number that config.json does not
  /// have).
  Result<std::string> fill(const Captured& captured, const Scope& scope) const;

  const std::string& text() const { return text_; }
  bool uses(std::size_t capture) const;

  /// The names that it gives, as a pattern. Its first captures are those of the rule, with the
  /// holes that `taken` has for them; capture number `captures` + k, a number, is what computed[k]
  /// is in the name. Errors: Unsupported (a capture comes twice, too many may end in several
  /// places). Requires: `taken` has all captures of the rule.
  struct Reversed {
    Pattern pattern;
    std::vector<Expression> computed;
  };
  Result<Reversed> reversed(const Pattern& taken, std::size_t captures) const;

 private:
  struct TextAndValue {
    std::string before;
    std::size_t capture = kNoCapture;  // a capture by itself is filled in as its text
    Expression expression = {};
  };
  static constexpr std::size_t kNoCapture = ~std::size_t{0};

  std::string text_;
  std::vector<TextAndValue> pieces_;
  std::string tail_;
};

}  // namespace ckfs
