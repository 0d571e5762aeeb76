// URLs by hand and not by libcurl's parser: this half is linked into programs without libcurl, and
// a parser that guesses ("http:/host", "host:80", a backslash) is the wrong one for what is signed,
// compared and believed.

#include "fetch/url.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include "base/text.h"

namespace ckfs {
namespace {

constexpr std::string_view kUnreservedMarks = "-._~";
constexpr std::string_view kSubDelimiters = "!$&'()*+,;=";

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_unreserved(char c) {
  return is_letter(c) || is_digit(c) || kUnreservedMarks.find(c) != std::string_view::npos;
}

int hex_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// Whether `text` has unreserved characters, sub-delimiters, those of `more` and %XX only.
bool is_url_text(std::string_view text, std::string_view more) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size() || hex_value(text[i + 1]) < 0 || hex_value(text[i + 2]) < 0) {
        return false;
      }
      i += 2;
    } else if (!is_unreserved(c) && kSubDelimiters.find(c) == std::string_view::npos &&
               more.find(c) == std::string_view::npos) {
      return false;
    }
  }
  return true;
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

bool is_host(std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    return std::ranges::all_of(host.substr(1, host.size() - 2),
                               [](char c) { return hex_value(c) >= 0 || c == ':' || c == '.'; });
  }
  return !host.empty() && host.size() <= 253 && host.front() != '.' && host.front() != '-' &&
         std::ranges::all_of(host, [](char c) {
           return is_letter(c) || is_digit(c) || c == '-' || c == '.' || c == '_';
         });
}

/// The four numbers of an IPv4 address as one; nullopt: not an address.
std::optional<std::uint32_t> ipv4_address(std::string_view host) {
  std::uint32_t address = 0;
  int parts = 0;
  while (parts < 4) {
    unsigned part = 0;
    const auto [end, error] = std::from_chars(host.data(), host.data() + host.size(), part);
    const auto digits = static_cast<std::size_t>(end - host.data());
    if (error != std::errc() || part > 255 || digits > 3) return std::nullopt;
    address = address << 8U | part;
    host.remove_prefix(digits);
    if (++parts == 4) break;
    if (host.empty() || host.front() != '.') return std::nullopt;
    host.remove_prefix(1);
  }
  if (!host.empty()) return std::nullopt;
  return address;
}

Failure no_url(std::string_view why) {
  return fail(ErrorCode::InvalidArgument, "not a URL: {}", why);
}

/// RFC 3986, 5.2.4, for a path that begins with '/'.
std::string without_dots(std::string_view path) {
  std::vector<std::string_view> segments;
  bool ends_open = false;  // with a '/', or with dots that stand for one
  for (std::size_t at = 1; at <= path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    const std::string_view segment = path.substr(at, end - at);
    ends_open = segment == "." || segment == "..";
    if (segment == "..") {
      if (!segments.empty()) segments.pop_back();
    } else if (segment != ".") {
      segments.push_back(segment);
    }
    at = end + 1;
  }
  std::string out;
  for (const std::string_view segment : segments) (out += '/') += segment;
  if (ends_open || out.empty()) out += '/';
  return out;
}

}  // namespace

std::string Url::authority() const {
  const std::uint16_t own = secure ? 443 : 80;
  return port == own ? host : fmt::format("{}:{}", host, port);
}

std::string Url::origin() const {
  return fmt::format("{}://{}", secure ? "https" : "http", authority());
}

std::string Url::text() const {
  return fmt::format("{}://{}{}{}{}{}{}", secure ? "https" : "http", user, user.empty() ? "" : "@",
                     authority(), path, query.empty() ? "" : "?", query);
}

std::string Url::masked() const {
  std::string out = fmt::format("{}://{}{}{}", secure ? "https" : "http",
                                user.empty() ? "" : "***@", authority(), path);
  char separator = '?';
  for (std::size_t at = 0; at < query.size();) {
    const std::size_t end = std::min(query.find('&', at), query.size());
    const std::string_view parameter = std::string_view(query).substr(at, end - at);
    const std::size_t equals = parameter.find('=');
    out += separator;
    // A query that is one word may be a token itself.
    out += equals == std::string_view::npos ? "***"
                                            : fmt::format("{}=***", parameter.substr(0, equals));
    separator = '&';
    at = end + 1;
  }
  return out;
}

Result<Url> parse_url(std::string_view text) {
  if (text.size() > kLongestUrl) return no_url("it is longer than 16384 bytes");
  const std::size_t colon = text.find("://");
  const std::string scheme = lower_case(text.substr(0, std::min(colon, text.size())));
  if (colon == std::string_view::npos || (scheme != "http" && scheme != "https")) {
    return no_url("it does not begin with http:// or https://");
  }
  Url url;
  url.secure = scheme == "https";
  url.port = url.secure ? 443 : 80;
  text.remove_prefix(colon + 3);
  if (text.find('#') != std::string_view::npos) {
    return no_url("it has a fragment ('#'; write %23 where the name has one)");
  }
  const std::size_t end = std::min(text.find_first_of("/?"), text.size());
  std::string_view authority = text.substr(0, end);
  text.remove_prefix(end);
  if (const std::size_t at = authority.rfind('@'); at != std::string_view::npos) {
    url.user = authority.substr(0, at);
    if (!is_url_text(url.user, ":")) return no_url("a character of user:password needs %XX");
    authority.remove_prefix(at + 1);
  }
  const std::size_t bracket = authority.find(']');
  const std::size_t port = authority.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (port != std::string_view::npos) {
    const std::string_view digits = authority.substr(port + 1);
    const auto [last, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), url.port);
    if (error != std::errc() || last != digits.data() + digits.size() || url.port == 0) {
      return no_url("the port is not a number from 1 to 65535");
    }
    authority = authority.substr(0, port);
  }
  url.host = lower_case(authority);
  if (!is_host(url.host)) return no_url(fmt::format("no host: {}", quote(url.host)));
  const std::size_t question = std::min(text.find('?'), text.size());
  url.path = text.substr(0, question);
  if (url.path.empty()) url.path = "/";
  if (question < text.size()) url.query = text.substr(question + 1);
  if (!is_url_text(url.path, "/:@")) return no_url("a character of its path needs %XX");
  // '[' and ']' are not allowed there, but servers write them.
  if (!is_url_text(url.query, "/:@?[]|")) return no_url("a character of its query needs %XX");
  return url;
}

Result<Url> resolve_reference(const Url& base, std::string_view reference) {
  const std::size_t mark = reference.find_first_of(":/?#");
  if (mark != std::string_view::npos && reference[mark] == ':') return parse_url(reference);
  if (reference.starts_with("//")) {
    return parse_url(fmt::format("{}:{}", base.secure ? "https" : "http", reference));
  }
  std::string path(reference.substr(0, std::min(reference.find('?'), reference.size())));
  const std::string_view query = reference.substr(path.size());
  if (path.empty()) {
    path = base.path;
  } else if (path.front() != '/') {
    path.insert(0, base.path.substr(0, base.path.rfind('/') + 1));
  }
  const std::string root = Url{base.secure, {}, base.host, base.port, {}, {}}.origin();
  return parse_url(fmt::format("{}{}{}", root, without_dots(path), query));
}

bool is_loopback_host(std::string_view host) {
  const auto address = ipv4_address(host);
  return host == "localhost" || host.ends_with(".localhost") || host == "[::1]" ||
         (address && *address >> 24U == 127);
}

bool is_link_local_host(std::string_view host) {
  const auto address = ipv4_address(host);
  if (address) return *address >> 16U == 0xA9FE;
  // Also IPv4 within IPv6, and the address of EC2's metadata service over IPv6.
  return host.starts_with("[fe8") || host.starts_with("[fe9") || host.starts_with("[fea") ||
         host.starts_with("[feb") || host.starts_with("[::ffff:169.254.") ||
         host.starts_with("[::ffff:a9fe:") || host.starts_with("[fd00:ec2:");
}

std::string percent_encode(std::string_view text, std::string_view keep) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (is_unreserved(c) || keep.find(c) != std::string_view::npos) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += kDigits[byte >> 4U];
      out += kDigits[byte & 15U];
    }
  }
  return out;
}

Result<std::string> percent_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_value(text[i + 2]) : -1;
    if (low < 0) {
      return fail(ErrorCode::InvalidArgument, "{}: a '%' without two hexadecimal digits",
                  quote(text));
    }
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

}  // namespace ckfs
