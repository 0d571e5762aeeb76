// The digests and signatures that services ask for, by libcrypto. Pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ckfs {

/// 32 bytes, as a string of bytes: a key of the next step as often as text.
std::string sha256(std::string_view text);
std::string hmac_sha256(std::string_view key, std::string_view text);
/// Lower case.
std::string to_hex(std::string_view bytes);
/// The bytes again; nullopt: not such a text.
std::optional<std::string> from_hex(std::string_view text);
/// RFC 4648, section 5, without padding.
std::string base64url(std::string_view bytes);
/// RFC 4648, section 4, with padding.
std::string base64(std::string_view bytes);
/// RSASSA-PKCS1-v1_5 with SHA-256 (JWT's RS256) by a private key in PEM. Errors: InvalidArgument
/// (no such key; the text of the error has nothing of it).
Result<std::string> sign_rs256(std::string_view text, std::string_view private_key_pem);

}  // namespace ckfs
