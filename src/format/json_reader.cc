#include "format/json_reader.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <system_error>

namespace ckfs {
namespace {

constexpr std::uint64_t kOnes = 0x0101010101010101;
constexpr std::uint64_t kHighBits = kOnes << 7;

constexpr bool has_byte(std::uint64_t word, char byte) {
  const std::uint64_t zero_at = word ^ (kOnes * static_cast<unsigned char>(byte));
  return ((zero_at - kOnes) & ~zero_at & kHighBits) != 0;
}

constexpr bool has_control(std::uint64_t word) {
  return ((word - kOnes * 0x20) & ~word & kHighBits) != 0;
}

constexpr bool is_plain(char c) {
  return c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20;
}

/// The first character at or behind `at` that does not stand for itself in a string; the text's
/// size: there is none. Eight at a time: most of what a checkpoint's JSON has are names.
std::size_t skip_plain(std::string_view text, std::size_t at) {
  for (std::uint64_t word = 0; at + sizeof(word) <= text.size(); at += sizeof(word)) {
    std::memcpy(&word, text.data() + at, sizeof(word));
    if (has_byte(word, '"') || has_byte(word, '\\') || has_control(word)) break;
  }
  while (at < text.size() && is_plain(text[at])) ++at;
  return at;
}

void append_utf8(std::string& out, std::uint32_t code) {
  const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  const auto put_rest = [&](unsigned shift) { put(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put_rest(0);
  } else if (code < 0x1'0000) {
    put(0xE0 | code >> 12);
    put_rest(6);
    put_rest(0);
  } else {
    put(0xF0 | code >> 18);
    put_rest(12);
    put_rest(6);
    put_rest(0);
  }
}

/// Whether a number that does not fit a double is too large, and not too small. Such exponents are
/// in the hundreds, so the position of the first digit other than 0 settles it.
bool is_large(std::string_view number) {
  const std::size_t e = std::min(number.find_first_of("eE"), number.size());
  const std::string_view digits = number.substr(0, e);
  const auto point = static_cast<std::int64_t>(std::min(digits.find('.'), digits.size()));
  const std::size_t first = digits.find_first_of("123456789");
  if (first == std::string_view::npos) return false;
  std::string_view exponent = number.substr(std::min(e + 1, number.size()));
  if (exponent.starts_with('+')) exponent.remove_prefix(1);
  std::int64_t power = 0;
  const auto [end, error] =
      std::from_chars(exponent.data(), exponent.data() + exponent.size(), power);
  if (error == std::errc::result_out_of_range) return !exponent.starts_with('-');
  constexpr std::int64_t kBeyondAnyText = std::int64_t{1} << 40;
  return std::clamp(power, -kBeyondAnyText, kBeyondAnyText) + point -
             static_cast<std::int64_t>(first) >
         0;
}

}  // namespace

Result<void> check_json_object(std::string_view text, std::string_view file_name) {
  for (std::size_t i = 0; i < text.size();) {
    std::uint64_t word = 0;
    if (i + sizeof(word) <= text.size()) {
      std::memcpy(&word, text.data() + i, sizeof(word));
      if ((word & kHighBits) == 0) {  // eight ASCII characters
        i += sizeof(word);
        continue;
      }
    }
    const std::size_t length = utf8_length(text, i);
    if (length == 0) return fail(ErrorCode::Corrupt, "{}: byte {} is not UTF-8", file_name, i);
    i += length;
  }

  const std::string_view value = trim(text);
  if (value.empty()) return fail(ErrorCode::Corrupt, "{}: not JSON, only white space", file_name);
  if (value.front() != '{') {
    return fail(ErrorCode::Corrupt, "{}: not a JSON object: its first byte is {:#04x}", file_name,
                static_cast<unsigned>(static_cast<unsigned char>(value.front())));
  }
  // No JSON has one, but what a file system lost is zeros: that is worth an error of its own.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return fail(ErrorCode::Corrupt, "{}: byte {} is NUL", file_name, nul);
  }
  return {};
}

std::size_t max_json_strings(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count(text, '"')) / 2;
}

std::optional<std::size_t> offset_in(std::string_view text, std::string_view part) {
  const std::less_equal<> not_after;
  if (!not_after(text.data(), part.data()) ||
      !not_after(part.data() + part.size(), text.data() + text.size())) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(part.data() - text.data());
}

JsonTokens::Kind JsonTokens::next() {
  while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  begin_ = at_;
  if (at_ == text_.size()) {
    fault_ = "not JSON: the text ends";  // of no account where it may
    return Kind::End;
  }
  switch (text_[at_]) {
    case '{':
    case '[':
      ++at_;
      return Kind::Open;
    case '}':
    case ']':
      ++at_;
      return Kind::Close;
    case ',':
      ++at_;
      return Kind::Comma;
    case ':':
      ++at_;
      return Kind::Colon;
    case '"':
      return read_string();
    case 't':
      return read_word("true", Kind::True);
    case 'f':
      return read_word("false", Kind::False);
    case 'n':
      return read_word("null", Kind::Null);
    case 'N':
      if (options_.python_words) return read_word("NaN", Kind::Word);
      break;
    case 'I':
      if (options_.python_words) return read_word("Infinity", Kind::Word);
      break;
    case '-':
      if (options_.python_words && text_.substr(at_).starts_with("-I")) {
        return read_word("-Infinity", Kind::Word);
      }
      return read_number();
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9':
      return read_number();
    default:
      break;
  }
  return refuse("a character that cannot begin a value");
}

JsonTokens::Kind JsonTokens::refuse(std::string_view reason) {
  fault_ = fmt::format("not JSON: {}", reason);
  return Kind::Fault;
}

JsonTokens::Kind JsonTokens::too_long() {
  fault_ = fmt::format("a text longer than {} bytes, the limit", options_.token_bytes);
  return Kind::Fault;
}

JsonTokens::Kind JsonTokens::read_word(std::string_view word, Kind kind) {
  const std::size_t end = at_ + word.size();
  if (text_.substr(at_, word.size()) != word ||
      (end < text_.size() && !ends_json_word(text_[end]))) {
    return refuse("a word that JSON does not have");
  }
  string_ = text_.substr(at_, word.size());
  at_ = end;
  return kind;
}

JsonTokens::Kind JsonTokens::read_string() {
  const std::size_t first = at_ + 1;
  at_ = skip_plain(text_, first);
  bool escaped = false;
  if (at_ < text_.size() && text_[at_] == '\\') {
    escaped = true;
    unescaped_.assign(text_, first, std::min(at_ - first, options_.token_bytes));
  }
  while (at_ < text_.size() && text_[at_] == '\\' && at_ - first <= options_.token_bytes) {
    if (!unescape())
      return refuse("an escape that JSON does not have, or half of a surrogate pair");
    const std::size_t plain = skip_plain(text_, at_);
    unescaped_.append(text_, at_, std::min(plain - at_, options_.token_bytes));
    at_ = plain;
  }
  if (at_ - first > options_.token_bytes) return too_long();
  if (at_ == text_.size()) return refuse("a string without an end");
  if (text_[at_] != '"') return refuse("a control character in a string");
  string_ = escaped ? std::string_view(unescaped_) : text_.substr(first, at_ - first);
  ++at_;
  return Kind::String;
}

/// One escape at at_, which it passes.
bool JsonTokens::unescape() {
  constexpr std::string_view kLetters = "\"\\/bfnrt";
  constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
  if (at_ + 1 == text_.size()) return false;
  const char letter = text_[at_ + 1];
  at_ += 2;
  if (const std::size_t i = kLetters.find(letter); i != std::string_view::npos) {
    unescaped_.push_back(kValues[i]);
    return true;
  }
  if (letter != 'u') return false;
  constexpr std::uint32_t kHigh = 0xD800, kLow = 0xDC00, kSurrogatesEnd = 0xE000;
  auto code = read_hex();
  if (!code) return false;
  if (*code >= kLow && *code < kSurrogatesEnd) return false;  // the second half of a pair first
  if (*code >= kHigh && *code < kLow) {
    if (text_.substr(at_, 2) != "\\u") return false;
    at_ += 2;
    const auto low = read_hex();
    if (!low || *low < kLow || *low >= kSurrogatesEnd) return false;
    code = 0x1'0000 + ((*code - kHigh) << 10) + (*low - kLow);
  }
  append_utf8(unescaped_, *code);
  return true;
}

std::optional<std::uint32_t> JsonTokens::read_hex() {
  constexpr std::size_t kDigits = 4;
  if (text_.size() - at_ < kDigits) return std::nullopt;
  std::uint32_t value = 0;
  const char* const first = text_.data() + at_;
  const auto [end, error] = std::from_chars(first, first + kDigits, value, 16);
  if (error != std::errc() || end != first + kDigits) return std::nullopt;
  at_ += kDigits;
  return value;
}

std::size_t JsonTokens::skip_digits(std::size_t at) const {
  while (at < text_.size() && text_[at] >= '0' && text_[at] <= '9') ++at;
  return at;
}

JsonTokens::Kind JsonTokens::read_number() {
  constexpr std::string_view kReason = "a number that JSON does not have";
  const bool negative = text_[at_] == '-';
  const std::size_t digits = at_ + (negative ? 1 : 0);
  std::size_t end = skip_digits(digits);
  if (end == digits) return refuse(kReason);
  if (text_[digits] == '0' && end > digits + 1) return refuse(kReason);
  const auto at_end = [&](std::string_view any) {
    return end < text_.size() && any.find(text_[end]) != std::string_view::npos;
  };
  bool whole = true;
  for (const std::string_view marks : {".", "eE"}) {
    if (!at_end(marks)) continue;
    whole = false;
    ++end;
    if (marks != "." && at_end("+-")) ++end;
    const std::size_t more = skip_digits(end);
    if (more == end) return refuse(kReason);
    end = more;
  }
  if (end < text_.size() && !ends_json_word(text_[end])) return refuse(kReason);
  if (end - at_ > options_.token_bytes) return too_long();

  const char* const first = text_.data() + at_;
  const char* const last = text_.data() + end;
  at_ = end;
  if (whole && negative && std::from_chars(first, last, integer_).ec == std::errc()) {
    return Kind::Integer;
  }
  if (whole && !negative && std::from_chars(first, last, unsigned_).ec == std::errc()) {
    return Kind::Unsigned;
  }
  if (std::from_chars(first, last, fraction_).ec == std::errc()) return Kind::Fraction;
  if (is_large({first, last})) return refuse("a number that does not fit a double");
  fraction_ = negative ? -0.0 : 0.0;
  return Kind::Fraction;
}

}  // namespace ckfs
