// AWS Signature Version 4 for requests without a body (AWS, "Create a signed AWS API request"): the
// fetcher makes signatures, and `ckfs serve` checks them.
//
// By hand, for libcurl's own is wrong in what Debian 12 and Ubuntu 24.04 have: queries that are not
// sorted and keys with '=' or '+' are refused by servers (curl/curl#13754). Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckfs {

/// Names in lower case.
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

/// The value of a header, the last of several; empty: it has none.
std::string_view find_header(const HttpHeaders& headers, std::string_view name);

/// What a signature needs of a caller. Secrets: never to be printed.
struct AwsKeys {
  std::string id;
  std::string secret;
  std::string session_token;  // empty: keys that live until they are revoked

  bool operator==(const AwsKeys&) const = default;
};

struct AwsScope {
  std::string region;
  std::string service = "s3";
};

/// The signed parts. `path` and `query` are as they go into the URL: percent-encoded once, as
/// percent_encode() does, `path` with its slashes.
struct UnsignedRequest {
  std::string_view method = "GET";
  std::string_view host;  // Url::authority()
  std::string_view path;
  std::string_view query;
  std::string_view body = {};
};

/// "20150830T123600Z".
std::string aws_time(std::int64_t unix_seconds);

/// The canonical request, whose digest is signed (AWS's step 1); for tests.
std::string canonical_request(const UnsignedRequest& request, const HttpHeaders& signed_headers,
                              std::string_view payload_hash);

/// The signature of a canonical request (AWS's steps 2 to 4), in hexadecimal. `time` is as
/// aws_time() gives it.
std::string aws_signature(std::string_view secret, const AwsScope& scope, std::string_view time,
                          std::string_view canonical);

/// Adds to `headers` (which are all signed, with `host`) what makes the request a signed one:
/// x-amz-date, x-amz-content-sha256 for S3, x-amz-security-token where there is one, and
/// authorization.
void sign_aws(const UnsignedRequest& request, const AwsKeys& keys, const AwsScope& scope,
              std::int64_t unix_seconds, HttpHeaders& headers);

}  // namespace ckfs
