// nlohmann's SAX reader is correct and needs no stack, but it copies every token (white space
// included) into buffers that double as they grow, so one string of 100 MB would cost 400 MB.
// Cheap passes in front of it bound every token. A parser of our own would bound them too, and give
// positions; but then the grammar would be ours to get right, and positions come as well from an
// iterator that counts.
#include "format/json_scan.h"

#include <cstring>

#include "base/text.h"

namespace ckfs {
namespace {

/// The first quote or backslash at or behind `at`; the text's size: there is none. Eight characters
/// at a time: most of what a checkpoint's JSON has are names.
std::size_t find_quote_or_escape(std::string_view text, std::size_t at) {
  constexpr std::uint64_t kOnes = 0x0101010101010101;
  const auto has_zero = [](std::uint64_t word) { return (word - kOnes) & ~word & (kOnes << 7); };
  for (std::uint64_t word = 0; at + sizeof(word) <= text.size(); at += sizeof(word)) {
    std::memcpy(&word, text.data() + at, sizeof(word));
    if (has_zero(word ^ (kOnes * '"')) != 0 || has_zero(word ^ (kOnes * '\\')) != 0) break;
  }
  while (at < text.size() && text[at] != '"' && text[at] != '\\') ++at;
  return at;
}

}  // namespace

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

  const std::string_view value = trim(text);
  if (value.empty()) return fail(ErrorCode::Corrupt, "{}: no JSON, only white space", file_name);
  if (value.front() != '{') {
    return fail(ErrorCode::Corrupt, "{}: not a JSON object: its first byte is {:#04x}", file_name,
                static_cast<unsigned>(static_cast<unsigned char>(value.front())));
  }

  // nlohmann's reader takes a NUL for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return fail(ErrorCode::Corrupt, "{}: byte {} is NUL", file_name, nul);
  }

  constexpr std::size_t kQuotes = 2;
  const auto too_long = [&](std::size_t at) {
    return fail(ErrorCode::Corrupt, "{}: the text at byte {} is longer than {} bytes", file_name,
                at, limits.string_bytes);
  };
  ScanResult result;
  std::size_t run = 0;  // bytes of the token or white space so far
  enum class In { Nothing, Space, Word, String } in = In::Nothing;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (in == In::String) {
      const std::size_t plain = find_quote_or_escape(value, i) - i;
      const std::size_t room = limits.string_bytes + kQuotes - run;
      if (plain > room) return too_long(i + room);
      i += plain;
      run += plain;
      if (i == value.size()) break;
    }
    const char c = value[i];
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
      result.values += c == ',' || c == '{' || c == '[';
      run = 1;
    } else {
      const In now = is_space(c) ? In::Space : In::Word;
      run = now == in ? run + 1 : 1;
      in = now;
    }
    if (in == In::Space && run > limits.whitespace_bytes) {
      return fail(ErrorCode::Corrupt, "{}: white space at byte {} is longer than {} bytes",
                  file_name, i, limits.whitespace_bytes);
    }
    if (in != In::Space && run > limits.string_bytes + kQuotes) return too_long(i);
  }
  return result;
}

std::string without_python_words(std::string_view text) {
  std::string out(text);
  const auto replace_word = [&](std::size_t at, std::string_view word, std::string_view by) {
    const std::size_t end = at + word.size();
    if (text.substr(at, word.size()) != word) return;
    if (end < text.size() && !ends_json_word(text[end])) return;
    std::size_t next = end;
    while (next < text.size() && is_space(text[next])) ++next;
    if (next < text.size() && text[next] == ':') return;  // a string there would be a key
    out.replace(at, by.size(), by);
  };
  bool in_string = false;
  bool at_word = true;  // the character before ends a word
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
      at_word = true;
      continue;
    }
    if (at_word) {
      if (c == 'N') replace_word(i, "NaN", R"("N")");
      if (c == 'I') replace_word(i, "Infinity", R"("Infin.")");
      if (c == '-') replace_word(i, "-Infinity", R"("-Infin.")");
    }
    in_string = c == '"';
    at_word = ends_json_word(c);
  }
  return out;
}

std::string syntax_reason(std::string_view what) {
  const std::size_t begin = what.find("syntax error");
  if (begin != std::string_view::npos) what.remove_prefix(begin);
  // The token that was read last may be long and hold anything.
  what = what.substr(0, what.find("; last read"));
  return std::string(what.substr(0, 160));
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
