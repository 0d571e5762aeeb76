// CRC-32C (Castagnoli): the reflected polynomial 0x82F63B78, initial and final value all ones, as
// RFC 3720 (appendix B.4) defines it and OCDBT stores it, unmasked.
#pragma once

#include <cstdint>
#include <string_view>

namespace ckfs {

/// Of what `before` is the sum of (nothing, by default), and of `text` behind it. By SSE4.2's
/// instruction where the CPU has it.
[[nodiscard]] std::uint32_t crc32c(std::string_view text, std::uint32_t before = 0);

/// The same by the definition, a table lookup a byte.
[[nodiscard]] std::uint32_t crc32c_plain(std::string_view text, std::uint32_t before = 0);

}  // namespace ckfs
