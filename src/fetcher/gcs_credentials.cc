// A credentials file names the URLs that get its secrets: they are taken where they are https, or
// this machine.

#include "fetcher/gcs_credentials.h"

#include "base/base64.h"
#include "base/text.h"
#include "fetcher/listing.h"
#include "fetcher/rs256.h"
#include "wire/times.h"

namespace ckfs {
namespace {

constexpr std::string_view kScope = "https://www.googleapis.com/auth/devstorage.read_only";
constexpr std::string_view kTokenUrl = "https://oauth2.googleapis.com/token";

std::string string_member(const JsonNode& object, std::string_view key,
                          std::string_view otherwise = {}) {
  const JsonNode* const member = object.find(key);
  return std::string(member != nullptr && member->kind == JsonNode::Kind::String
                         ? std::string_view(member->text)
                         : otherwise);
}

Result<Url> parse_token_url(std::string_view text, std::string_view thing) {
  auto url = parse_url(text);
  if (!url) return Failure(url.error().within(std::string(thing)));
  if (!url->secure && !is_loopback_host(url->host)) {
    return fail(ErrorCode::InvalidArgument, "{}: {} is not https", thing, url->origin());
  }
  return url;
}

}  // namespace

Result<std::string> GcsCredentials::authorization() {
  constexpr std::int64_t kRenewBefore = 300;
  const std::int64_t now = context_.here.now();
  if (!lent_ || now >= lent_->ends - kRenewBefore) {
    auto found = find();
    if (found) {
      lent_ = *std::move(found);
    } else if (!lent_ || now >= lent_->ends) {
      return Failure(std::move(found).error());
    }
  }
  return "Bearer " + lent_->text;
}

Result<GcsCredentials::Token> GcsCredentials::find() {
  const Surroundings& here = context_.here;
  const std::string named = here.variable("GOOGLE_APPLICATION_CREDENTIALS");
  std::string path = named;
  if (path.empty()) {
    const std::string directory = here.variable("CLOUDSDK_CONFIG");
    path = directory.empty() ? here.at_home(".config/gcloud/application_default_credentials.json")
                             : directory + "/application_default_credentials.json";
  }
  const auto text = path.empty() ? Result<std::string>("") : here.read_file(path);
  if (!text && (!named.empty() || text.error().code() != ErrorCode::NotFound)) {
    return Failure(text.error().within("credentials of Google"));
  }
  if (!text || text->empty()) return of_machine();
  CKFS_TRY(const JsonNode file, parse_json_tree(*text, path, JsonKeys::LastWins));
  return of_file(file, path, true);
}

Result<GcsCredentials::Token> GcsCredentials::of_file(const JsonNode& file, std::string_view thing,
                                                      bool may_impersonate) {
  const std::string type = string_member(file, "type");
  if (type == "service_account") return of_service_account(file, thing);
  if (type == "authorized_user") return of_user(file, thing);
  if (type == "external_account") return of_external_account(file, thing);
  const JsonNode* const source = file.find("source_credentials");
  if (type == "impersonated_service_account" && may_impersonate && source != nullptr) {
    CKFS_TRY(const Token token, of_file(*source, thing, false));
    return impersonate(string_member(file, "service_account_impersonation_url"), token.text, thing);
  }
  return fail(ErrorCode::Unsupported, "{}: credentials of type {}", thing, quote(type));
}

Result<GcsCredentials::Token> GcsCredentials::ask(const std::string& url, std::string body,
                                                  std::string_view thing) {
  CKFS_TRY(const Url to, parse_token_url(url, thing));
  const HttpRequest request{.method = "POST",
                            .url = to,
                            .headers = {{"content-type", "application/x-www-form-urlencoded"}},
                            .body = std::move(body)};
  CKFS_TRY(const HttpAnswer answer, call(context_, request, thing));
  if (!answer.is_success()) return Failure(answer_error(thing, answer));
  CKFS_TRY(const JsonNode tree, parse_json_tree(answer.body, thing, JsonKeys::LastWins));
  const JsonNode* const seconds = tree.find("expires_in");
  Token token{string_member(tree, "access_token"), context_.here.now() + 900};
  if (token.text.empty()) return fail(ErrorCode::Corrupt, "{}: no token in the answer", thing);
  if (seconds != nullptr && seconds->number > 0 && seconds->number < 1e6) {
    token.ends = context_.here.now() + static_cast<std::int64_t>(seconds->number);
  }
  return token;
}

Result<GcsCredentials::Token> GcsCredentials::of_service_account(const JsonNode& file,
                                                                 std::string_view thing) {
  const std::string url = string_member(file, "token_uri", kTokenUrl);
  const std::int64_t now = context_.here.now();
  const std::string client = string_member(file, "client_email");
  // It goes into JSON: an address has none of these.
  if (client.empty() || client.find_first_of("\"\\") != std::string::npos ||
      url.find_first_of("\"\\") != std::string::npos) {
    return fail(ErrorCode::Corrupt, "{}: no client_email", thing);
  }
  const std::string claims =
      fmt::format(R"({{"iss":"{}","scope":"{}","aud":"{}","iat":{},"exp":{}}})", client, kScope,
                  url, now, now + 3600);
  const std::string to_sign =
      base64url(fmt::format(R"({{"alg":"RS256","typ":"JWT","kid":"{}"}})",
                            percent_encode(string_member(file, "private_key_id")))) +
      "." + base64url(claims);
  auto signature = sign_rs256(to_sign, string_member(file, "private_key"));
  if (!signature) return Failure(signature.error().within(std::string(thing)));
  return ask(url,
             fmt::format("grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&"
                         "assertion={}.{}",
                         to_sign, base64url(*signature)),
             thing);
}

Result<GcsCredentials::Token> GcsCredentials::of_user(const JsonNode& file,
                                                      std::string_view thing) {
  return ask(string_member(file, "token_uri", kTokenUrl),
             fmt::format("grant_type=refresh_token&client_id={}&client_secret={}&refresh_token={}",
                         percent_encode(string_member(file, "client_id")),
                         percent_encode(string_member(file, "client_secret")),
                         percent_encode(string_member(file, "refresh_token"))),
             thing);
}

Result<std::string> GcsCredentials::subject_token(const JsonNode& source, std::string_view thing) {
  std::string text;
  if (const std::string path = string_member(source, "file"); !path.empty()) {
    CKFS_TRY(text, context_.here.read_file(path));
  } else if (const std::string url = string_member(source, "url"); !url.empty()) {
    CKFS_TRY(const Url from, parse_url(url));
    HttpRequest request{.url = from, .headers = {}, .to_machine = true};
    if (const JsonNode* const headers = source.find("headers"); headers != nullptr) {
      for (std::size_t i = 0; i < headers->keys.size(); ++i) {
        request.headers.emplace_back(headers->keys[i], headers->items[i].text);
      }
    }
    CKFS_TRY(const HttpAnswer answer, call(context_, request, thing));
    if (!answer.is_success()) return Failure(answer_error(thing, answer));
    text = answer.body;
  } else {
    return fail(ErrorCode::Unsupported,
                "{}: an external account whose token is in no file and at no URL", thing);
  }
  const JsonNode* const format = source.find("format");
  if (format != nullptr && string_member(*format, "type") == "json") {
    CKFS_TRY(const JsonNode tree, parse_json_tree(text, thing, JsonKeys::LastWins));
    return string_member(tree, string_member(*format, "subject_token_field_name"));
  }
  return std::string(trim(text));
}

Result<GcsCredentials::Token> GcsCredentials::of_external_account(const JsonNode& file,
                                                                  std::string_view thing) {
  const JsonNode* const source = file.find("credential_source");
  if (source == nullptr) return fail(ErrorCode::Corrupt, "{}: no credential_source", thing);
  CKFS_TRY(const std::string subject, subject_token(*source, thing));
  const std::string impersonation = string_member(file, "service_account_impersonation_url");
  CKFS_TRY(
      Token token,
      ask(string_member(file, "token_url", "https://sts.googleapis.com/v1/token"),
          fmt::format(
              "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Atoken-exchange&"
              "requested_token_type=urn%3Aietf%3Aparams%3Aoauth%3Atoken-type%3Aaccess_token&"
              "audience={}&subject_token_type={}&subject_token={}&scope={}",
              percent_encode(string_member(file, "audience")),
              percent_encode(string_member(file, "subject_token_type")), percent_encode(subject),
              percent_encode(impersonation.empty()
                                 ? kScope
                                 : "https://www.googleapis.com/auth/cloud-platform")),
          thing));
  if (impersonation.empty()) return token;
  return impersonate(impersonation, token.text, thing);
}

Result<GcsCredentials::Token> GcsCredentials::impersonate(std::string_view url,
                                                          std::string_view source_token,
                                                          std::string_view thing) {
  CKFS_TRY(const Url to, parse_token_url(url, thing));
  const HttpRequest request{.method = "POST",
                            .url = to,
                            .headers = {{"authorization", fmt::format("Bearer {}", source_token)},
                                        {"content-type", "application/json"}},
                            .body = fmt::format(R"({{"scope":["{}"]}})", kScope)};
  CKFS_TRY(const HttpAnswer answer, call(context_, request, thing));
  if (!answer.is_success()) return Failure(answer_error(thing, answer));
  CKFS_TRY(const JsonNode tree, parse_json_tree(answer.body, thing, JsonKeys::LastWins));
  Token token{
      string_member(tree, "accessToken"),
      parse_iso_time(string_member(tree, "expireTime")).value_or(context_.here.now() + 900)};
  if (token.text.empty()) return fail(ErrorCode::Corrupt, "{}: no token in the answer", thing);
  return token;
}

Result<GcsCredentials::Token> GcsCredentials::of_machine() {
  constexpr std::string_view kThing = "the metadata server";
  // Elsewhere than at Google nothing answers.
  constexpr std::int64_t kMost = 3000;
  std::string host = context_.here.variable("GCE_METADATA_HOST");
  if (host.empty()) host = "metadata.google.internal";
  CKFS_TRY(Url url, parse_endpoint("http://" + host, "GCE_METADATA_HOST"));
  url.path = "/computeMetadata/v1/instance/service-accounts/default/token";
  url.query = "scopes=" + percent_encode(kScope);
  const HttpAnswer answer = context_.http.fetch({.url = url,
                                                 .headers = {{"metadata-flavor", "Google"}},
                                                 .most_milliseconds = kMost,
                                                 .to_machine = true});
  if (answer.status == 0) {
    return fail(ErrorCode::Io,
                "no credentials of Google: none in GOOGLE_APPLICATION_CREDENTIALS, of gcloud "
                "(gcloud auth application-default login) or of this machine (a public bucket: "
                "--anonymous)");
  }
  if (!answer.is_success()) return Failure(answer_error(kThing, answer));
  CKFS_TRY(const JsonNode tree, parse_json_tree(answer.body, kThing, JsonKeys::LastWins));
  const JsonNode* const seconds = tree.find("expires_in");
  Token token{string_member(tree, "access_token"), context_.here.now() + 900};
  if (token.text.empty()) return fail(ErrorCode::Corrupt, "{}: no token in the answer", kThing);
  if (seconds != nullptr && seconds->number > 0 && seconds->number < 1e6) {
    token.ends = context_.here.now() + static_cast<std::int64_t>(seconds->number);
  }
  return token;
}

}  // namespace ckfs
