// Where the members of a config.json begin and end: a scanner over text that is known to be JSON.
// Internal to src/format.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "format/json_reader.h"

namespace ckfs {

/// Checks that `text` is JSON (with Python's three words) within the limits of json_text.h, without
/// a string of more than 4 MiB, and an object. Errors: Corrupt.
Result<void> validate_config(std::string_view text, std::string_view file_name);

/// A run of the text.
struct JsonSpan {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// A member of an object, or (with an empty key) an element of a list.
struct JsonMember {
  std::string_view key;  // as it is written; see is_key()
  std::size_t begin = 0;
  JsonSpan value;
};

/// The scanner. It may be given only text that validate_config() has passed. Where each object and
/// list ends is found once: looked for again at each level, it would cost the text once for each.
class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : text_(text) {
    std::vector<std::size_t> open;  // in ends_
    for (std::size_t at = 0; at < text_.size();) {
      const char c = text_[at];
      if (c == '"') {
        at = skip_string(at);
        continue;
      }
      if (c == '{' || c == '[') {
        open.push_back(ends_.size());
        ends_.push_back({at, 0});
      } else if (c == '}' || c == ']') {
        ends_[open.back()].end = at + 1;
        open.pop_back();
      }
      ++at;
    }
  }

  std::string_view of(JsonSpan span) const {
    return text_.substr(span.begin, span.end - span.begin);
  }
  char first(JsonSpan span) const { return text_[span.begin]; }

  JsonSpan top() const {
    const std::size_t begin = skip_space(0);
    return {begin, skip_value(begin)};
  }

  /// Members of an object, elements of a list, nothing for anything else.
  std::vector<JsonMember> children(JsonSpan value) const {
    std::vector<JsonMember> out;
    const bool object = first(value) == '{';
    if (!object && first(value) != '[') return out;
    std::size_t at = skip_space(value.begin + 1);
    while (at + 1 < value.end) {
      JsonMember member;
      member.begin = at;
      if (object) {
        const std::size_t end = skip_value(at);
        member.key = text_.substr(at + 1, end - at - 2);
        at = skip_space(skip_space(end) + 1);
      }
      member.value = {at, skip_value(at)};
      out.push_back(member);
      at = skip_space(member.value.end);
      if (text_[at] == ',') at = skip_space(at + 1);
    }
    return out;
  }

  std::size_t skip_space(std::size_t at) const {
    while (at < text_.size() && is_space(text_[at])) ++at;
    return at;
  }

 private:
  std::size_t skip_string(std::size_t at) const {
    for (++at; text_[at] != '"'; ++at) {
      if (text_[at] == '\\') ++at;
    }
    return at + 1;
  }

  std::size_t skip_value(std::size_t at) const {
    if (text_[at] == '"') return skip_string(at);
    if (text_[at] != '{' && text_[at] != '[') {
      while (at < text_.size() && !ends_json_word(text_[at])) ++at;
      return at;
    }
    return std::ranges::lower_bound(ends_, at, {}, &JsonSpan::begin)->end;
  }

  std::string_view text_;
  std::vector<JsonSpan> ends_;  // of the objects and lists, by where they begin
};

/// Whether the member's key is `name`, escapes taken into account.
bool is_key(const JsonMember& member, std::string_view name);

/// A string's value, escapes taken into account. Requires: `text` is a JSON string with its quotes.
std::string json_string(std::string_view text);

/// Whether the member holds a quantization: it has no place in a dense config.
bool is_quantization(const JsonMember& member);

/// Checks that no member that decides how tensors are decoded and cast is there twice: it would be
/// a guess which one counts. (Of the others the last counts, as in Python; of members that hold
/// one more quantization_config deeper down the first.) Errors: Corrupt.
Result<void> check_once(const std::vector<JsonMember>& members, std::string_view file_name);

/// The same of all keys of an object, escapes taken into account: where any of them may be read.
Result<void> check_all_once(const std::vector<JsonMember>& members, std::string_view file_name);

}  // namespace ckfs
