// The signature is computed anew from what came, by the code that the fetcher signs with, and
// compared in constant time. The path is encoded anew from its decoded form: S3's rule is that each
// byte is encoded once, however the client wrote it.

#include "serve/access.h"

#include <algorithm>
#include <charconv>
#include <openssl/crypto.h>

#include "base/text.h"
#include "fetch/url.h"
#include "wire/crypto.h"
#include "wire/times.h"

namespace ckfs {
namespace {

constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";
constexpr std::int64_t kMostSkew = 15 * 60;             // of AWS
constexpr std::int64_t kMostPresigned = 7 * 24 * 3600;  // of AWS
constexpr std::size_t kLeastSecret = 8;

bool is_same_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

/// "20150830T123600Z" in seconds of Unix.
std::optional<std::int64_t> parse_aws_time(std::string_view text) {
  if (text.size() != 16) return std::nullopt;
  return parse_iso_time(fmt::format("{}-{}-{}:{}:{}{}", text.substr(0, 4), text.substr(4, 2),
                                    text.substr(6, 5), text.substr(11, 2), text.substr(13, 2),
                                    text.substr(15)));
}

struct Signed {
  std::string id, date, region, service;
  std::string headers;  // names with ';' between
  std::string signature;
  std::string time;
  std::string payload;
  std::int64_t lives = 0;  // seconds; 0: as long as clocks may differ
};

/// The part of "a=1, b=2" behind "NAME=".
std::string_view field_of(std::string_view text, std::string_view name) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view each = trim(text.substr(begin, end - begin));
    if (each.size() > name.size() && each.starts_with(name) && each[name.size()] == '=') {
      return each.substr(name.size() + 1);
    }
    begin = end + 1;
  }
  return {};
}

/// Fills what "ID/20150830/us-east-1/s3/aws4_request" has. An ID may have '/'.
bool take_credential(std::string_view text, Signed& taken) {
  std::string* const parts[] = {nullptr, &taken.service, &taken.region, &taken.date};
  for (std::string* const part : parts) {
    const std::size_t slash = text.rfind('/');
    if (slash == std::string_view::npos) return false;
    if (part != nullptr) {
      *part = text.substr(slash + 1);
    } else if (text.substr(slash + 1) != "aws4_request") {
      return false;
    }
    text = text.substr(0, slash);
  }
  taken.id = text;
  return !taken.id.empty() && !taken.date.empty();
}

std::optional<Signed> signature_of(const ServeRequest& request) {
  Signed taken;
  const auto parameter = [&](std::string_view name) {
    return std::string(request.parameter(name).value_or(""));
  };
  const std::string_view authorization = request.header("authorization");
  if (authorization.starts_with(kAlgorithm)) {
    const std::string_view fields = authorization.substr(kAlgorithm.size());
    if (!take_credential(field_of(fields, "Credential"), taken)) return std::nullopt;
    taken.headers = field_of(fields, "SignedHeaders");
    taken.signature = field_of(fields, "Signature");
    taken.time = request.header("x-amz-date");
    taken.payload = request.header("x-amz-content-sha256");
    // curl signs the hash of its empty body without sending it.
    if (taken.payload.empty()) taken.payload = to_hex(sha256(""));
    return taken;
  }
  if (request.parameter("X-Amz-Algorithm") != kAlgorithm) return std::nullopt;
  if (!take_credential(parameter("X-Amz-Credential"), taken)) return std::nullopt;
  taken.headers = parameter("X-Amz-SignedHeaders");
  taken.signature = parameter("X-Amz-Signature");
  taken.time = parameter("X-Amz-Date");
  taken.payload = "UNSIGNED-PAYLOAD";
  const std::string lives = parameter("X-Amz-Expires");
  std::from_chars(lives.data(), lives.data() + lives.size(), taken.lives);
  if (taken.lives <= 0 || taken.lives > kMostPresigned) return std::nullopt;
  return taken;
}

/// The signed headers; nullopt: one is named that the request does not have, or `host` is not.
std::optional<HttpHeaders> signed_headers(const ServeRequest& request, std::string_view names) {
  HttpHeaders headers;
  bool has_host = false;
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(';'), names.size());
    const std::string_view name = names.substr(0, end);
    names.remove_prefix(std::min(end + 1, names.size()));
    if (name == "host") {
      has_host = true;
      headers.emplace_back("host", request.authority);
      continue;
    }
    bool found = false;
    for (const auto& [each, value] : request.headers) {
      if (each != name) continue;
      headers.emplace_back(each, value);
      found = true;
    }
    if (!found) return std::nullopt;
  }
  if (!has_host) return std::nullopt;
  return headers;
}

std::string encoded_query(const ServeRequest& request) {
  std::string query;
  for (const auto& [name, value] : request.query) {
    if (name == "X-Amz-Signature") continue;
    fmt::format_to(std::back_inserter(query), "{}{}={}", query.empty() ? "" : "&",
                   percent_encode(name), percent_encode(value));
  }
  return query;
}

/// The bytes of a text of base64, as far as it is one.
std::string from_base64(std::string_view text) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const std::size_t value = kAlphabet.find(c);
    if (value == std::string_view::npos) break;
    bits = bits << 6U | static_cast<std::uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> static_cast<unsigned>(count) & 255U);
  }
  return out;
}

std::optional<std::string_view> after_scheme(std::string_view authorization,
                                             std::string_view scheme) {
  if (authorization.size() <= scheme.size() || authorization[scheme.size()] != ' ') {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < scheme.size(); ++i) {
    if ((authorization[i] | 0x20) != scheme[i]) return std::nullopt;
  }
  return trim(authorization.substr(scheme.size() + 1));
}

}  // namespace

Result<AwsKeys> parse_key(std::string_view text, std::string_view file) {
  const std::string_view line = trim(text.substr(0, std::min(text.find('\n'), text.size())));
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0) {
    return fail(ErrorCode::InvalidArgument, "{}: not a key pair (its first line is ID:SECRET)",
                file);
  }
  AwsKeys keys{.id = std::string(line.substr(0, colon)),
               .secret = std::string(line.substr(colon + 1)),
               .session_token = {}};
  if (keys.secret.size() < kLeastSecret) {
    return fail(ErrorCode::InvalidArgument, "{}: the secret is too short (at least {} characters)",
                file, kLeastSecret);
  }
  return keys;
}

std::optional<Refusal> check_key(const ServeRequest& request, const AwsKeys& key,
                                 std::int64_t now) {
  const std::string_view authorization = request.header("authorization");
  if (const auto token = after_scheme(authorization, "bearer")) {
    if (is_same_secret(*token, key.secret)) return std::nullopt;
    return Refusal{403, "AccessDenied", "the bearer token is not the key's secret"};
  }
  if (const auto pair = after_scheme(authorization, "basic")) {
    if (is_same_secret(from_base64(*pair), key.id + ":" + key.secret)) return std::nullopt;
    return Refusal{401, "AccessDenied", "user and password are not those of the key"};
  }
  // Of a presigned URL some clients still make it.
  if (after_scheme(authorization, "aws") || request.parameter("AWSAccessKeyId")) {
    return Refusal{400, "InvalidRequest",
                   "a signature of AWS's version 2: sign with AWS4-HMAC-SHA256 (signature_version "
                   "s3v4)"};
  }
  if (authorization.empty() && !request.parameter("X-Amz-Algorithm")) {
    return Refusal{401, "AccessDenied",
                   "a key is needed: a signature of AWS's version 4, or the secret as a bearer "
                   "token or password"};
  }
  const auto taken = signature_of(request);
  if (!taken) {
    return Refusal{400, "AuthorizationHeaderMalformed", "not a signature of AWS's version 4"};
  }
  if (!is_same_secret(taken->id, key.id)) {
    return Refusal{403, "InvalidAccessKeyId", "the key's ID is another"};
  }
  const auto time = parse_aws_time(taken->time);
  if (!time || !taken->time.starts_with(taken->date)) {
    return Refusal{403, "AccessDenied", "the signature has no valid time (x-amz-date)"};
  }
  if (*time > now + kMostSkew || *time + (taken->lives > 0 ? taken->lives : kMostSkew) < now) {
    return taken->lives > 0
               ? Refusal{403, "AccessDenied", "Request has expired"}
               : Refusal{403, "RequestTimeTooSkewed",
                         fmt::format("the clocks differ: it is {} here", iso_time(now))};
  }
  const auto headers = signed_headers(request, taken->headers);
  if (!headers) {
    return Refusal{403, "AccessDenied", "the signed headers are not those of the request"};
  }
  const std::string path = percent_encode(request.path, "/");
  const std::string query = encoded_query(request);
  const std::string canonical = canonical_request(
      {.method = request.method, .host = request.authority, .path = path, .query = query}, *headers,
      taken->payload);
  const std::string signature =
      aws_signature(key.secret, {taken->region, taken->service}, taken->time, canonical);
  if (!is_same_secret(taken->signature, signature)) {
    return Refusal{403, "SignatureDoesNotMatch",
                   "the signature is another: is the secret that of the server's --key-file?"};
  }
  return std::nullopt;
}

bool is_own_name(std::string_view host) {
  return is_loopback_host(host) || host.empty();
}

}  // namespace ckfs
