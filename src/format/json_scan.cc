// nlohmann's SAX reader is correct and needs no stack, but it copies every token (white space
// included) into buffers that double as they grow, so one string of 100 MB would cost 400 MB. One
// cheap pass in front of it bounds every token. A parser of our own would bound them too, and give
// positions; but then the grammar would be ours to get right, and positions come as well from an
// iterator that counts.
#include "format/json_scan.h"

#include <cstring>

namespace ckfs {
namespace {

/// Bytes of the UTF-8 character that starts at text[at]; 0 where there is none. (The Unicode
/// Standard, table 3-7.)
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

}  // namespace

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

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = utf8_length(text, i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

Result<ScanResult> scan_json(std::string_view text, const ScanLimits& limits,
                             std::string_view file_name) {
  for (std::size_t i = 0; i < text.size();) {
    std::uint64_t word = 0;
    if (i + sizeof(word) <= text.size()) {
      std::memcpy(&word, text.data() + i, sizeof(word));
      if ((word & 0x8080808080808080) == 0) {  // eight ASCII characters
        i += sizeof(word);
        continue;
      }
    }
    const std::size_t length = utf8_length(text, i);
    if (length == 0) return fail(ErrorCode::Corrupt, "{}: byte {} is not UTF-8", file_name, i);
    i += length;
  }

  const std::string_view value = trim_json(text);
  if (value.empty()) return fail(ErrorCode::Corrupt, "{}: no JSON, only white space", file_name);
  if (value.front() != '{') {
    return fail(ErrorCode::Corrupt, "{}: not a JSON object: its first byte is {:#04x}", file_name,
                static_cast<unsigned>(static_cast<unsigned char>(value.front())));
  }

  ScanResult result;
  std::size_t run = 0;  // bytes of the token or white space so far
  enum class In { Nothing, Space, Word, String } in = In::Nothing;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const char c = value[i];
    // nlohmann's reader takes a NUL for the end of the text.
    if (c == '\0') return fail(ErrorCode::Corrupt, "{}: byte {} is NUL", file_name, i);
    if (in == In::String) {
      ++run;
      if (c == '\\') {
        ++run;
        ++i;  // an escaped quote does not end the string
      } else if (c == '"') {
        in = In::Nothing;
      }
    } else if (is_json_structural(c)) {
      in = c == '"' ? In::String : In::Nothing;
      result.strings += c == '"';
      run = 1;
    } else {
      const In now = is_json_space(c) ? In::Space : In::Word;
      run = now == in ? run + 1 : 1;
      in = now;
    }
    if (in == In::Space && run > limits.whitespace_bytes) {
      return fail(ErrorCode::Corrupt, "{}: white space at byte {} is longer than {} bytes",
                  file_name, i, limits.whitespace_bytes);
    }
    if (in != In::Space && run > limits.string_bytes + 2) {  // 2: the quotes
      return fail(ErrorCode::Corrupt, "{}: the text at byte {} is longer than {} bytes", file_name,
                  i, limits.string_bytes);
    }
  }
  return result;
}

std::string syntax_reason(std::string_view what) {
  const std::size_t begin = what.find("syntax error");
  if (begin != std::string_view::npos) what.remove_prefix(begin);
  // The token that was read last may be long and hold anything.
  what = what.substr(0, what.find("; last read"));
  return std::string(what.substr(0, 160));
}

std::string_view trim_json(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  return text;
}

std::size_t find_verbatim(std::string_view text, const char* end, std::string_view value) {
  const auto close = static_cast<std::size_t>(end - text.data());  // one past the closing quote
  if (close < value.size() + 2) return std::string_view::npos;
  const std::size_t begin = close - 1 - value.size();
  if (text[begin - 1] != '"' || text.substr(begin, value.size()) != value) {
    return std::string_view::npos;
  }
  return begin;
}

}  // namespace ckfs
