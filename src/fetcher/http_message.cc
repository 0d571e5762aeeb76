#include "fetcher/http_message.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/text.h"
#include "wire/times.h"

namespace ckfs {
namespace {

/// Takes a number off `text`; nullopt: there is none, or it exceeds 2^63.
std::optional<std::uint64_t> take_count(std::string_view& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value >> 63U != 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, char mark) {
  if (!text.starts_with(mark)) return false;
  text.remove_prefix(1);
  return true;
}

std::size_t count_of(const HttpHeaders& headers, std::string_view name) {
  return static_cast<std::size_t>(
      std::ranges::count(headers, name, &HttpHeaders::value_type::first));
}

}  // namespace

std::optional<ContentRange> parse_content_range(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  text.remove_prefix(6);
  const auto first = take_count(text);
  const auto last = first && take(text, '-') ? take_count(text) : std::nullopt;
  const auto total = last && take(text, '/') ? take_count(text) : std::nullopt;
  if (!total || !text.empty() || *last < *first || *last >= *total) return std::nullopt;
  return ContentRange{{*first, *last + 1}, *total};
}

bool take_header_line(std::string_view line, HttpAnswer& answer) {
  constexpr std::size_t kMostHeaders = 256, kMostBytes = 65536;
  line = trim(line);
  if (line.starts_with("HTTP/")) {
    answer.headers.clear();
    const std::size_t space = line.find(' ');
    std::string_view code = line.substr(std::min(space, line.size() - 1) + 1);
    const auto status = take_count(code);
    if (!status || *status < 100 || *status > 999) return false;
    answer.status = static_cast<int>(*status);
    return true;
  }
  if (line.empty()) return true;
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  std::size_t bytes = line.size();
  for (const auto& [name, value] : answer.headers) bytes += name.size() + value.size();
  if (answer.headers.size() == kMostHeaders || bytes > kMostBytes) return false;
  std::string name(line.substr(0, colon));
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  answer.headers.emplace_back(std::move(name), trim(line.substr(colon + 1)));
  return true;
}

Belief believe(const RangeWanted& wanted, const HttpAnswer& answer) {
  const auto no = [](HttpFault fault, std::string why) { return Belief{fault, std::move(why)}; };
  const std::string_view encoding = find_header(answer.headers, "content-encoding");
  if (!encoding.empty() && encoding != "identity" && encoding != "aws-chunked") {
    return no(HttpFault::Unwanted,
              fmt::format("the server sends it with Content-Encoding {}", quote(encoding)));
  }
  if (count_of(answer.headers, "content-range") > 1) {
    return no(HttpFault::Unwanted, "the server sends two Content-Range");
  }
  const std::string_view header = find_header(answer.headers, "content-range");
  if (header.empty()) {
    // A server without ranges has sent the right bytes where all of them were wanted.
    const std::string_view length = find_header(answer.headers, "content-length");
    if (answer.status != 200 || wanted.range != ByteRange{0, wanted.total}) {
      return no(HttpFault::Unwanted,
                "the server sends no ranges (status 200 without Content-Range)");
    }
    if (length != fmt::to_string(wanted.total)) {
      return no(HttpFault::Changed, fmt::format("its size was {} and is {}", wanted.total,
                                                length.empty() ? "not said" : length));
    }
  } else {
    const auto range = parse_content_range(header);
    if (!range) return no(HttpFault::Unwanted, fmt::format("Content-Range: {}", quote(header)));
    if (range->total != wanted.total) {
      return no(HttpFault::Changed,
                fmt::format("its size was {} and is {}", wanted.total, range->total));
    }
    if (range->range != wanted.range) {
      return no(HttpFault::Unwanted,
                fmt::format("the server sends bytes {} for {}", range->range, wanted.range));
    }
  }
  for (const auto& [name, value] : wanted.versions) {
    const std::string_view is = find_header(answer.headers, name);
    if (is != value) {
      return no(HttpFault::Changed, is.empty() ? fmt::format("the server says no {} any more", name)
                                               : fmt::format("its {} was {} and is {}", name,
                                                             one_line(value), one_line(is)));
    }
  }
  return {};
}

std::optional<std::int64_t> asked_wait(const HttpHeaders& headers, std::int64_t now) {
  static constexpr std::int64_t kMost = 3600;
  const auto bounded = [](std::int64_t seconds) {
    return std::clamp(seconds, std::int64_t{0}, kMost);
  };
  std::string_view text = find_header(headers, "retry-after");
  if (!text.empty()) {
    if (const auto time = parse_http_time(text)) return bounded(*time - now);
    const auto seconds = take_count(text);
    if (seconds && text.empty()) {
      return bounded(static_cast<std::int64_t>(std::min<std::uint64_t>(*seconds, kMost)));
    }
  }
  // RateLimit: "resolvers";r=0;t=123
  text = find_header(headers, "ratelimit");
  const std::size_t at = text.find(";t=");
  if (at == std::string_view::npos) return std::nullopt;
  text.remove_prefix(at + 3);
  const auto seconds = take_count(text);
  if (!seconds) return std::nullopt;
  return bounded(static_cast<std::int64_t>(std::min<std::uint64_t>(*seconds, kMost)));
}

std::string_view request_id(const HttpHeaders& headers) {
  constexpr auto kNames =
      std::to_array<std::string_view>({"x-amz-request-id", "x-amzn-requestid",
                                       "x-guploader-uploadid", "x-request-id", "x-amz-cf-id"});
  for (const std::string_view name : kNames) {
    const std::string_view id = find_header(headers, name);
    if (!id.empty()) return id.substr(0, 128);
  }
  return {};
}

}  // namespace ckfs
