// The JSON of checkpoints, event by event: headers and indexes of up to 512 MiB, which a mount
// waits for. Internal to src/format.
//
// Not nlohmann's reader, which the rest of ckfs uses: that copies every token into buffers that
// double as they grow, gives no positions, and reads 0.1 GB/s. It is the reference that a test
// compares this one with, event by event.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fmt/format.h>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace ckfs {

struct JsonOptions {
  std::size_t token_bytes = 0;  // of one string, as it is written between its quotes, or number
  /// Whether NaN, Infinity and -Infinity are values (as strings): Python's json writes them.
  bool python_words = false;
};

/// Checks that `text` is UTF-8 without NUL, and that its first character after white space is '{'.
/// No allocation. Errors: Corrupt.
Result<void> check_json_object(std::string_view text, std::string_view file_name);

/// How many strings `text` can have at most: enough to size tables before it is read.
std::size_t max_json_strings(std::string_view text);

/// Where `part` begins in `text`; nullopt: it is not a slice of it.
std::optional<std::size_t> offset_in(std::string_view text, std::string_view part);

/// The characters that stand for themselves outside strings, and the quote that begins one.
constexpr bool is_json_structural(char c) {
  return c == '{' || c == '}' || c == '[' || c == ']' || c == ',' || c == ':' || c == '"';
}

/// What may follow a number, true, false or null.
constexpr bool ends_json_word(char c) {
  return is_space(c) || is_json_structural(c);
}

/// The tokens of a text (RFC 8259; what json_text.h accepts of it). The text must outlive it and be
/// UTF-8.
class JsonTokens {
 public:
  enum class Kind : std::uint8_t {
    Open,   // '{' or '['
    Close,  // '}' or ']'
    Comma,
    Colon,
    String,  // text()
    Word,    // NaN, Infinity or -Infinity: text()
    Null,
    True,
    False,
    Unsigned,  // of at most 2^64 - 1: unsigned_value()
    Integer,   // with a minus, of at least -2^63: integer_value()
    Fraction,  // any other number whose nearest double is finite: fraction_value()
    End,
    Fault,  // fault()
  };

  JsonTokens(std::string_view text, const JsonOptions& options) : text_(text), options_(options) {}

  /// The next token. Behind End and Fault there is no other.
  Kind next();

  /// Of the last token: its first byte, and one past its last.
  std::size_t begin() const { return begin_; }
  std::size_t end() const { return at_; }
  char character() const { return text_[begin_]; }
  /// A slice of the text where the string has no escape; otherwise valid until the next token.
  std::string_view text() const { return string_; }
  std::uint64_t unsigned_value() const { return unsigned_; }
  std::int64_t integer_value() const { return integer_; }
  double fraction_value() const { return fraction_; }
  const std::string& fault() const { return fault_; }

 private:
  Kind refuse(std::string_view reason);
  Kind too_long();
  Kind read_string();
  Kind read_number();
  Kind read_word(std::string_view word, Kind kind);
  bool unescape();
  std::optional<std::uint32_t> read_hex();
  std::size_t skip_digits(std::size_t at) const;

  std::string_view text_;
  JsonOptions options_;
  std::size_t at_ = 0, begin_ = 0;
  std::string_view string_;
  std::string unescaped_;  // of a string with escapes
  std::uint64_t unsigned_ = 0;
  std::int64_t integer_ = 0;
  double fraction_ = 0;
  std::string fault_;
};

/// Reads `text` and calls a method of `handler` for each thing that it finds, named as those of
/// nlohmann's SAX readers are: null(), boolean(bool), number_unsigned(uint64_t),
/// number_integer(int64_t), number_float(double, text), string(text), key(text), start_object(n),
/// end_object(), start_array(n), end_array() (n: always -1, not known). Each returns whether to
/// continue. `end` is one past the last byte of the token that an event is about. Text that is not
/// JSON ends in parse_error(byte, reason): where the wrong token begins, and "not JSON: no key
/// where one must be" or the limit that it exceeds. Texts are slices as JsonTokens::text() says.
/// Memory: a bit for each open object and list, and one string with escapes. No recursion. Returns:
/// `text` was JSON, and every event returned true. Requires: `text` is UTF-8.
template <typename Handler>
bool read_json(std::string_view text, const JsonOptions& options, std::size_t& end,
               Handler& handler) {
  using Kind = JsonTokens::Kind;
  enum class Wanted : std::uint8_t { Value, ValueOrClose, Key, KeyOrClose, CommaOrClose, End };
  constexpr auto kUnknown = static_cast<std::size_t>(-1);

  JsonTokens tokens(text, options);
  std::vector<bool> is_object;  // of each object and list that is open
  Wanted wanted = Wanted::Value;
  const auto refuse = [&](std::string_view reason) {
    const bool of_grammar = tokens.fault().empty() || wanted == Wanted::End;
    handler.parse_error(tokens.begin(),
                        of_grammar ? fmt::format("not JSON: {}", reason) : tokens.fault());
    return false;
  };
  const auto after_value = [&] { return is_object.empty() ? Wanted::End : Wanted::CommaOrClose; };

  for (;;) {
    const Kind kind = tokens.next();
    end = tokens.end();
    if (kind == Kind::Close && !is_object.empty() && wanted != Wanted::Value &&
        wanted != Wanted::Key && (tokens.character() == '}') == is_object.back()) {
      const bool object = is_object.back();
      is_object.pop_back();
      if (!(object ? handler.end_object() : handler.end_array())) return false;
      wanted = after_value();
      continue;
    }
    switch (wanted) {
      case Wanted::End:
        return kind == Kind::End ? true : refuse("text after the value");
      case Wanted::CommaOrClose:
        if (kind != Kind::Comma) {
          return refuse(is_object.back() ? "neither ',' nor '}' after a member"
                                         : "neither ',' nor ']' after an element");
        }
        wanted = is_object.back() ? Wanted::Key : Wanted::Value;
        continue;
      case Wanted::Key:
      case Wanted::KeyOrClose:
        if (kind != Kind::String) return refuse("no key where one must be");
        if (!handler.key(tokens.text())) return false;
        if (tokens.next() != Kind::Colon) return refuse("no ':' after a key");
        wanted = Wanted::Value;
        continue;
      case Wanted::Value:
      case Wanted::ValueOrClose:
        break;
    }
    bool go_on = false;
    switch (kind) {
      case Kind::Open: {
        const bool object = tokens.character() == '{';
        is_object.push_back(object);
        if (!(object ? handler.start_object(kUnknown) : handler.start_array(kUnknown))) {
          return false;
        }
        wanted = object ? Wanted::KeyOrClose : Wanted::ValueOrClose;
        continue;
      }
      case Kind::String:
      case Kind::Word:
        go_on = handler.string(tokens.text());
        break;
      case Kind::Null:
        go_on = handler.null();
        break;
      case Kind::True:
      case Kind::False:
        go_on = handler.boolean(kind == Kind::True);
        break;
      case Kind::Unsigned:
        go_on = handler.number_unsigned(tokens.unsigned_value());
        break;
      case Kind::Integer:
        go_on = handler.number_integer(tokens.integer_value());
        break;
      case Kind::Fraction:
        go_on = handler.number_float(tokens.fraction_value(),
                                     text.substr(tokens.begin(), tokens.end() - tokens.begin()));
        break;
      default:
        return refuse("no value where one must be");
    }
    if (!go_on) return false;
    wanted = after_value();
  }
}

}  // namespace ckfs
