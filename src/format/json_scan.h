// What all JSON of checkpoints goes through before nlohmann's SAX reader, and what that reader
// does not report: positions in the text. Internal to src/format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace ckfs {

struct ScanLimits {
  std::size_t string_bytes = 0;      // of one string, number or word
  std::size_t whitespace_bytes = 0;  // of one run inside the outermost value
};

/// What a scan finds in passing: enough to size tables before the text is parsed.
struct ScanResult {
  std::size_t strings = 0;
  std::size_t values = 0;  // at most: commas, and objects and lists
};

/// Checks that `text` is UTF-8 without NUL, that its first character after white space is '{', and
/// that no token is longer than the limits (nlohmann's reader copies each token, and white space
/// too). No allocation. Errors: Corrupt.
Result<ScanResult> scan_json(std::string_view text, const ScanLimits& limits,
                             std::string_view file_name);

/// The text with NaN, Infinity and -Infinity replaced by strings of the same length: JSON has no
/// such words, Python's json writes them as values. One in the place of a key stays, an error.
std::string without_python_words(std::string_view text);

/// The text of nlohmann's parse error, without the text it found: "syntax error while parsing ...".
std::string syntax_reason(std::string_view what);

/// The characters that stand for themselves outside strings, and the quote that begins one.
constexpr bool is_json_structural(char c) {
  return c == '{' || c == '}' || c == '[' || c == ']' || c == ',' || c == ':' || c == '"';
}

/// What may follow a number, true, false or null.
constexpr bool ends_json_word(char c) {
  return is_space(c) || is_json_structural(c);
}

/// An iterator over text that knows how far the reader has come: nlohmann reads a character, and
/// `*position` is the address of the next.
class TrackingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackingIterator(const char* at, const char** position) : at_(at), position_(position) {}
  reference operator*() const { return *at_; }
  TrackingIterator& operator++() {
    *position_ = ++at_;
    return *this;
  }
  TrackingIterator operator++(int) {
    const TrackingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const TrackingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TrackingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** position_;
};

/// Where in `text` the string stands whose closing quote is just before `end`, if it is written
/// there without an escape and so can be kept as a slice; otherwise npos.
std::size_t find_verbatim(std::string_view text, const char* end, std::string_view value);

}  // namespace ckfs
