// The check of a request: a server is read by every client that reaches it, or by holders of one
// key pair.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "serve/request.h"
#include "wire/sigv4.h"

namespace ckfs {

/// A key pair of a file: "ID:SECRET" in its first line. Errors: InvalidArgument (the text of the
/// error has nothing of the secret).
Result<AwsKeys> parse_key(std::string_view text, std::string_view file);

/// Why a request is refused.
struct Refusal {
  int status = 403;
  std::string code;  // of S3
  std::string text;
};

/// Checks a request against `key`: a signature of AWS's version 4, in its headers or (a presigned
/// URL) in its query, no older than its time allows; or the secret itself as "Bearer SECRET" or by
/// basic authentication as ID and password. `now`: seconds since 1970. nullopt: it may read. Pure.
std::optional<Refusal> check_key(const ServeRequest& request, const AwsKeys& key, std::int64_t now);

/// Of a server without a key: whether the name by which it was asked is that of this machine alone.
/// A page of another site cannot have a browser here ask under its own name, then.
bool is_own_name(std::string_view host);

}  // namespace ckfs
