// Three texts and five HMACs. What goes wrong in practice is the canonical form: the query sorted
// by its encoded names, header values with runs of spaces made one, the path of S3 encoded once and
// never normalized (other services normalize it and encode twice; all that is asked of these here
// has the path "/").

#include "wire/sigv4.h"

#include <algorithm>
#include <ctime>
#include <map>

#include "base/text.h"
#include "wire/crypto.h"

namespace ckfs {
namespace {

std::string canonical_query(std::string_view query) {
  std::vector<std::pair<std::string_view, std::string_view>> parameters;
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view parameter = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (parameter.empty()) continue;
    const std::size_t equals = std::min(parameter.find('='), parameter.size());
    parameters.emplace_back(parameter.substr(0, equals),
                            parameter.substr(std::min(equals + 1, parameter.size())));
  }
  std::ranges::sort(parameters);
  std::string out;
  for (const auto& [name, value] : parameters) {
    fmt::format_to(std::back_inserter(out), "{}{}={}", out.empty() ? "" : "&", name, value);
  }
  return out;
}

std::string canonical_value(std::string_view value) {
  std::string out;
  for (const char c : trim(value)) {
    if (c != ' ' || !out.ends_with(' ')) out += c;
  }
  return out;
}

/// Sorted by name; those of one name stay in their order.
HttpHeaders by_name(const HttpHeaders& headers) {
  const std::multimap<std::string, std::string> sorted(headers.begin(), headers.end());
  return {sorted.begin(), sorted.end()};
}

std::string header_names(const HttpHeaders& sorted) {
  std::string names;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (i > 0 && sorted[i].first == sorted[i - 1].first) continue;
    if (!names.empty()) names += ';';
    names += sorted[i].first;
  }
  return names;
}

}  // namespace

std::string_view find_header(const HttpHeaders& headers, std::string_view name) {
  std::string_view value;
  for (const auto& [each, its_value] : headers) {
    if (each == name) value = its_value;
  }
  return value;
}

std::string aws_time(std::int64_t unix_seconds) {
  const auto time = static_cast<std::time_t>(unix_seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

std::string canonical_request(const UnsignedRequest& request, const HttpHeaders& signed_headers,
                              std::string_view payload_hash) {
  const HttpHeaders sorted = by_name(signed_headers);
  std::string headers;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const bool again = i > 0 && sorted[i].first == sorted[i - 1].first;
    if (again) {
      headers.back() = ',';  // values of one name are one value
    } else {
      (headers += sorted[i].first) += ':';
    }
    (headers += canonical_value(sorted[i].second)) += '\n';
  }
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path,
                     canonical_query(request.query), headers, header_names(sorted), payload_hash);
}

std::string aws_signature(std::string_view secret, const AwsScope& scope, std::string_view time,
                          std::string_view canonical) {
  const std::string_view date = time.substr(0, 8);
  const std::string to_sign =
      fmt::format("AWS4-HMAC-SHA256\n{}\n{}/{}/{}/aws4_request\n{}", time, date, scope.region,
                  scope.service, to_hex(sha256(canonical)));
  std::string key = hmac_sha256(fmt::format("AWS4{}", secret), date);
  for (const std::string_view part :
       {std::string_view(scope.region), std::string_view(scope.service),
        std::string_view("aws4_request")}) {
    key = hmac_sha256(key, part);
  }
  return to_hex(hmac_sha256(key, to_sign));
}

void sign_aws(const UnsignedRequest& request, const AwsKeys& keys, const AwsScope& scope,
              std::int64_t unix_seconds, HttpHeaders& headers) {
  const std::string time = aws_time(unix_seconds);
  const std::string payload = to_hex(sha256(request.body));
  headers.emplace_back("x-amz-date", time);
  // The hash of the body that is sent, and not UNSIGNED-PAYLOAD, which some servers refuse.
  if (scope.service == "s3") headers.emplace_back("x-amz-content-sha256", payload);
  if (!keys.session_token.empty()) headers.emplace_back("x-amz-security-token", keys.session_token);
  HttpHeaders signed_headers = headers;
  signed_headers.emplace_back("host", request.host);
  signed_headers = by_name(signed_headers);
  const std::string signature =
      aws_signature(keys.secret, scope, time, canonical_request(request, signed_headers, payload));
  headers.emplace_back(
      "authorization",
      fmt::format(
          "AWS4-HMAC-SHA256 Credential={}/{}/{}/{}/aws4_request, SignedHeaders={}, Signature={}",
          keys.id, time.substr(0, 8), scope.region, scope.service, header_names(signed_headers),
          signature));
}

}  // namespace ckfs
