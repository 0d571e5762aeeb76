// Times as services write and read them. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ckfs {

/// "2009-10-12T17:50:30.000Z", with or without a fraction and with 'Z' or an offset, in seconds of
/// Unix. nullopt: not such a time.
std::optional<std::int64_t> parse_iso_time(std::string_view text);

/// "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110, IMF-fixdate), likewise.
std::optional<std::int64_t> parse_http_time(std::string_view text);

/// The other direction, in those forms.
std::string iso_time(std::int64_t unix_seconds);
std::string http_time(std::int64_t unix_seconds);

}  // namespace ckfs
