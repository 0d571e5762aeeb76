// Names the format of a file that is not what it was taken for; for messages only.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace ckfs {

/// As many first bytes as what_it_is() looks at.
inline constexpr std::size_t kFormatMark = 512;

/// What a file is by its first bytes, for a message "FILE: is ": "a GGUF file, which ckfs does not
/// read", "an HTML page (an error page that was saved?), not a safetensors file"; empty: none that
/// is known. `first`: kFormatMark bytes, or the whole of a shorter file. A pure function.
std::string what_it_is(std::span<const std::byte> first);

}  // namespace ckfs
