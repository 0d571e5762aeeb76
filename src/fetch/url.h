// URLs of http and https, as far as a reader of objects needs them (RFC 3986). Strict: a URL comes
// from a user, a server or a redirect, and what two programs may read in two ways is refused.
// Plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ckfs {

inline constexpr std::size_t kLongestUrl = 16384;  // signed URLs of the hub have 2,000 bytes

/// An absolute URL of http or https, in parts. Percent-encoded characters stay so.
struct Url {
  bool secure = true;    // https
  std::string user;      // "user:password", or empty
  std::string host;      // in lower case; an address of IPv6 with its brackets
  std::uint16_t port{};  // never 0: the scheme's own where none was given
  std::string path;      // begins with '/'
  std::string query;     // without '?'

  bool operator==(const Url&) const = default;

  /// "https://host[:port]": what may share credentials and connections.
  std::string origin() const;
  /// "host[:port]", as the header Host has it: without the scheme's own port.
  std::string authority() const;
  /// The URL again, with its secrets.
  std::string text() const;
  /// The same for people and logs: the password and the values of the query are "***", for the
  /// query of a signed URL is as good as a password.
  std::string masked() const;
};

/// Errors: InvalidArgument (another scheme, no host, a character that must be encoded, a fragment,
/// a port out of range, more than kLongestUrl bytes); the text of the error has no secret.
Result<Url> parse_url(std::string_view text);

/// What `reference` means in an answer to `base`: a URL, "//host/path", "/path", "?query" or a
/// relative path ('.' and '..' are resolved). Errors: InvalidArgument, as parse_url().
Result<Url> resolve_reference(const Url& base, std::string_view reference);

/// Whether a host is this machine by its name or address alone: nothing is looked up.
bool is_loopback_host(std::string_view host);
/// Whether a host is an address of 169.254/16 or fe80::/10, where metadata services live.
bool is_link_local_host(std::string_view host);

/// Everything but A-Z a-z 0-9 - . _ ~ as %XX (RFC 3986's unreserved; what SigV4 signs). `keep` has
/// characters that stay too, "/" for a path.
std::string percent_encode(std::string_view text, std::string_view keep = {});

/// Errors: InvalidArgument (a '%' without two hexadecimal digits).
Result<std::string> percent_decode(std::string_view text);

}  // namespace ckfs
