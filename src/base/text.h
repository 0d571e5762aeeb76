// Text from files, for messages and for formats that demand UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ckfs {

/// `text` in double quotes for a message: quotes, backslashes, C0 controls and DEL escaped, cut at
/// 200 bytes.
[[nodiscard]] std::string quote(std::string_view text);

/// `text` in one line for a terminal or a log. Controls (C0, DEL, C1), line ends and characters
/// that turn the direction of writing become spaces, \xNN or \uNNNN; spaces at the end are removed.
/// So a name in a checkpoint cannot forge a line. Bytes that are not UTF-8 pass, except C1
/// controls.
[[nodiscard]] std::string one_line(std::string_view text);

/// Bytes of the UTF-8 character that starts at text[at]; 0 where there is none. No surrogates,
/// nothing overlong (The Unicode Standard, table 3-7). Requires: at < text.size().
[[nodiscard]] std::size_t utf8_length(std::string_view text, std::size_t at);

/// Whether all of `text` is such characters.
[[nodiscard]] bool is_utf8(std::string_view text);

/// The same with surrogates, which Python's strings and pickles may have ("surrogatepass").
[[nodiscard]] std::size_t python_text_length(std::string_view text, std::size_t at);
[[nodiscard]] bool is_python_text(std::string_view text);

/// Whether a character is printable ASCII that JSON texts have as it is; whether all of `text` are,
/// as of most names.
constexpr bool is_plain_json(char c) {
  return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}
[[nodiscard]] bool is_plain_json(std::string_view text);

/// What JSON calls white space.
constexpr bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/// Of ASCII, whatever the locale.
constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// The text without white space at both ends.
[[nodiscard]] std::string_view trim(std::string_view text);

}  // namespace ckfs
