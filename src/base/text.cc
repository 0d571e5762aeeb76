#include "base/text.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fmt/format.h>

namespace ckfs {

std::string quote(std::string_view text) {
  constexpr std::size_t kShown = 200;
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    } else {
      out += c;
    }
  }
  return out + (text.size() > kShown ? "...\"" : "\"");
}

namespace {

/// Whether a terminal or a log viewer obeys a character instead of showing it: C0 and C1 controls,
/// marks that turn the direction of writing, ends of lines or paragraphs.
constexpr bool steers(std::uint32_t c) {
  return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0x61c || c == 0x200e || c == 0x200f ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

/// Whether all of the text is characters, by `length`. ASCII goes eight bytes at a time.
template <typename Length>
bool is_all(std::string_view text, Length length) {
  for (std::size_t i = 0; i < text.size();) {
    std::uint64_t word = 0;
    if (text.size() - i >= sizeof(word)) {
      std::memcpy(&word, text.data() + i, sizeof(word));
      if ((word & 0x8080808080808080) == 0) {
        i += sizeof(word);
        continue;
      }
    }
    const std::size_t bytes = length(text, i);
    if (bytes == 0) return false;
    i += bytes;
  }
  return true;
}

/// The character of `length` bytes, which are UTF-8.
std::uint32_t decode(std::string_view bytes) {
  std::uint32_t c = static_cast<unsigned char>(bytes.front());
  if (bytes.size() > 1) c &= 0x7fU >> bytes.size();
  for (const char byte : bytes.substr(1)) c = c << 6 | (static_cast<unsigned char>(byte) & 0x3fU);
  return c;
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    const std::string_view bytes = text.substr(at, std::max<std::size_t>(length, 1));
    at += bytes.size();
    if (bytes == "\n" || bytes == "\t") {
      line += ' ';
      continue;
    }
    // A byte that is not UTF-8 is shown as it is (an old file name), unless an eight-bit terminal
    // obeys it.
    const std::uint32_t c = length == 0 ? static_cast<unsigned char>(bytes.front()) : decode(bytes);
    if (!steers(c)) {
      line += bytes;
    } else if (c <= 0xff) {
      line += fmt::format("\\x{:02x}", c);
    } else {
      line += fmt::format("\\u{:04x}", c);
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0U;
  };
  const auto in = [](unsigned value, unsigned low, unsigned high) {
    return low <= value && value <= high;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (in(first, 0xC2, 0xDF)) return in(byte(1), 0x80, 0xBF) ? 2 : 0;
  if (in(first, 0xE0, 0xEF)) {
    const unsigned low = first == 0xE0 ? 0xA0 : 0x80;
    const unsigned high = first == 0xED ? 0x9F : 0xBF;
    return in(byte(1), low, high) && in(byte(2), 0x80, 0xBF) ? 3 : 0;
  }
  if (in(first, 0xF0, 0xF4)) {
    const unsigned low = first == 0xF0 ? 0x90 : 0x80;
    const unsigned high = first == 0xF4 ? 0x8F : 0xBF;
    return in(byte(1), low, high) && in(byte(2), 0x80, 0xBF) && in(byte(3), 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

std::size_t python_text_length(std::string_view text, std::size_t at) {
  const std::size_t length = utf8_length(text, at);
  if (length != 0 || text.size() - at < 3 || text[at] != '\xED') return length;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  return byte(1) >> 5 == 0b101 && byte(2) >> 6 == 0b10 ? 3 : 0;
}

bool is_utf8(std::string_view text) {
  return is_all(text, utf8_length);
}

bool is_python_text(std::string_view text) {
  return is_all(text, python_text_length);
}

bool is_plain_json(std::string_view text) {
  bool plain = true;  // without an early exit, which vectors do not have
  for (const char c : text) plain &= is_plain_json(c);
  return plain;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace ckfs
