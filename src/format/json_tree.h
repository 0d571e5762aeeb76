// JSON as a tree that knows its lines: for files that people write and want to be shown their
// mistakes in (recipes), and for the numbers of a config.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ckfs {

inline constexpr std::size_t kMaxJsonNodes = 1'000'000;

/// A value of a JSON text. Plain data.
struct JsonNode {
  enum class Kind : std::uint8_t { Null, Boolean, Number, String, List, Object };

  Kind kind = Kind::Null;
  std::uint32_t line = 1;              // of its first token, from 1
  double number = 0;                   // of a Number; of a Boolean 0 or 1
  std::string text = {};               // of a String
  std::vector<std::string> keys = {};  // of an Object, one for each of `items`, in the text's order
  std::vector<JsonNode> items = {};    // of a List or an Object

  /// The member of that key, the last of several; nullptr: none, or no object.
  const JsonNode* find(std::string_view key) const;
  /// Its kind for messages: "a list", "a string".
  std::string_view kind_text() const;
};

/// Whether a key may come twice in an object.
enum class JsonKeys : bool { Unique, LastWins };

/// Parses a text that is one object, as config.json may be (json_text.h; NaN and the infinities
/// become strings). Errors: Corrupt (not JSON, deeper than kMaxConfigDepth, more than kMaxJsonNodes
/// values, a token of more than 1 MiB; of Unique a key that comes twice, or more than 1000 members
/// of one object), with the file's name.
Result<JsonNode> parse_json_tree(std::string_view text, std::string_view file_name, JsonKeys keys);

}  // namespace ckfs
