// Names the format of a file that is not what it was taken for; for messages only.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace ckfs {

/// As many first bytes as name_of_format() looks at.
inline constexpr std::size_t kFormatMark = 512;

/// The format of a file by its first bytes, "a GGUF file"; empty: ckfs does not know it. `first`:
/// kFormatMark bytes, or the whole of a shorter file. A pure function.
std::string_view name_of_format(std::span<const std::byte> first);

}  // namespace ckfs
