// Sizes as users write them in options and in names of views: "5GB", "64MiB", "4096".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ckfs {

/// "5GB" = 5 * 10^9, "64MiB" = 2^26, "1.5gb" = 1.5 * 10^9, "4096". Errors: InvalidArgument.
Result<std::uint64_t> parse_size(std::string_view text);

/// The shortest text that parse_size() reads as `bytes`: a size that a user gave prints in its
/// unit.
std::string size_text(std::uint64_t bytes);

}  // namespace ckfs
