// The signature of a service account.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace ckfs {

/// RSASSA-PKCS1-v1_5 with SHA-256 (JWT's RS256) by a private key in PEM. Errors: InvalidArgument
/// (no such key; the text of the error has nothing of it).
Result<std::string> sign_rs256(std::string_view text, std::string_view private_key_pem);

}  // namespace ckfs
