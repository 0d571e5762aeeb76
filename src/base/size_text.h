// Sizes as users write them in options and in names of views: "5GB", "64MiB", "4096".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ckfs {

/// "5GB" = 5 * 10^9, "64MiB" = 2^26, "1.5gb" = 1.5 * 10^9, "4096". Errors: InvalidArgument.
Result<std::uint64_t> parse_size(std::string_view text);

/// A size of at least `least`. Errors: InvalidArgument, naming the option `name`.
Result<std::uint64_t> parse_bytes(const std::string& name, const std::string& value,
                                  std::uint64_t least);

/// A whole decimal number. Errors: InvalidArgument, naming `thing`.
Result<std::uint64_t> parse_number(const std::string& thing, const std::string& text);

/// The shortest text without a point that parse_size() reads as `bytes`: "5GB" prints as such, and
/// "1.5GB" as "1500MB".
std::string size_text(std::uint64_t bytes);

/// "1.5 GB": three digits at most, decimal units.
std::string human_size(std::uint64_t bytes);

/// A number for people: "16,488".
std::string grouped(std::uint64_t number);

}  // namespace ckfs
