// RFC 4648: bytes as letters.
#pragma once

#include <string>
#include <string_view>

namespace ckfs {

/// Section 4, with padding.
std::string base64(std::string_view bytes);
/// Section 5, without padding.
std::string base64url(std::string_view bytes);

}  // namespace ckfs
