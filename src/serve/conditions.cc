// The order is that of RFC 9110, 13.2.2. A validator of a view's file is always strong: the same
// tag means the same bytes.

#include "serve/conditions.h"

#include <algorithm>
#include <charconv>

#include "base/text.h"
#include "wire/times.h"

namespace ckfs {
namespace {

enum class TagCompare : std::uint8_t { Strong, Weak };

/// Whether `list` ("*", or tags with commas between, each quoted or, as some clients of S3 send
/// them, bare) has `tag`.
bool has_tag(std::string_view list, std::string_view tag, TagCompare compare) {
  while (true) {
    const std::size_t end = std::min(list.find(','), list.size());
    std::string_view each = trim(list.substr(0, end));
    if (each == "*") return true;
    const bool weak = each.starts_with("W/");
    if (weak) each.remove_prefix(2);
    if (each.size() >= 2 && each.front() == '"' && each.back() == '"') {
      each = each.substr(1, each.size() - 2);
    }
    if (each == tag && (!weak || compare == TagCompare::Weak)) return true;
    if (end == list.size()) return false;
    list.remove_prefix(end + 1);
  }
}

std::optional<std::uint64_t> number_of(std::string_view digits) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (end != digits.data() + digits.size() || digits.empty() || !is_digit(digits.front())) {
    return std::nullopt;
  }
  // More than any file has: the number of the same meaning that can be kept.
  if (error == std::errc::result_out_of_range) return ~std::uint64_t{0};
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

struct AskedRange {
  std::optional<std::uint64_t> first, last;  // without `first`: the last so many bytes
};

/// "bytes=0-99", "bytes=100-", "bytes=-100"; nullopt: another form, or several.
std::optional<AskedRange> parse_range(std::string_view text) {
  constexpr std::string_view kUnit = "bytes=";
  if (!text.starts_with(kUnit)) return std::nullopt;
  text = trim(text.substr(kUnit.size()));
  const std::size_t dash = text.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  AskedRange asked;
  if (dash > 0) {
    asked.first = number_of(text.substr(0, dash));
    if (!asked.first) return std::nullopt;
  }
  if (dash + 1 < text.size()) {
    asked.last = number_of(text.substr(dash + 1));
    if (!asked.last) return std::nullopt;
  }
  if (!asked.first && !asked.last) return std::nullopt;
  if (asked.first && asked.last && *asked.last < *asked.first) return std::nullopt;
  return asked;
}

/// nullopt: none of the file's bytes.
std::optional<ByteRange> within_file(const AskedRange& asked, std::uint64_t size) {
  if (!asked.first) {
    const std::uint64_t count = std::min(*asked.last, size);
    if (count == 0) return std::nullopt;
    return ByteRange{size - count, size};
  }
  if (*asked.first >= size) return std::nullopt;
  return ByteRange{*asked.first, asked.last && *asked.last < size ? *asked.last + 1 : size};
}

}  // namespace

AskedBytes asked_bytes(const ServeRequest& request, std::string_view tag, std::int64_t mtime,
                       std::uint64_t size) {
  const ByteRange all{0, size};
  const std::string_view if_match = request.header("if-match");
  const std::string_view if_none_match = request.header("if-none-match");
  if (!if_match.empty()) {
    if (!has_tag(if_match, tag, TagCompare::Strong)) return {Wanted::Failed, {}};
  } else if (const auto time = parse_http_time(request.header("if-unmodified-since"))) {
    if (mtime > *time) return {Wanted::Failed, {}};
  }
  if (!if_none_match.empty()) {
    if (has_tag(if_none_match, tag, TagCompare::Weak)) return {Wanted::NotModified, {}};
  } else if (const auto time = parse_http_time(request.header("if-modified-since"))) {
    if (mtime <= *time) return {Wanted::NotModified, {}};
  }

  const std::string_view range = request.header("range");
  if (range.empty() || request.method != "GET") return {Wanted::Whole, all};
  if (const std::string_view if_range = request.header("if-range"); !if_range.empty()) {
    const auto time = parse_http_time(if_range);
    const bool is_same = time ? *time == mtime : has_tag(if_range, tag, TagCompare::Strong);
    if (!is_same) return {Wanted::Whole, all};
  }
  const auto asked = parse_range(range);
  if (!asked) return {Wanted::Whole, all};
  const auto part = within_file(*asked, size);
  if (!part) return {Wanted::Unsatisfiable, {}};
  return {Wanted::Part, *part};
}

}  // namespace ckfs
