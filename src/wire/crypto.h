// The digests that services ask for, by libcrypto. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ckfs {

/// 32 bytes, as a string of bytes: a key of the next step as often as text.
std::string sha256(std::string_view text);
std::string hmac_sha256(std::string_view key, std::string_view text);
/// Lower case.
std::string to_hex(std::string_view bytes);
/// The bytes again; nullopt: not such a text.
std::optional<std::string> from_hex(std::string_view text);

}  // namespace ckfs
