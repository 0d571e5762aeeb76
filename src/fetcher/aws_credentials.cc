// No library for it is in Debian; the chain is long, but each link is a file, one request, or a
// program that the user names (credential_process.h).

#include "fetcher/aws_credentials.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <openssl/evp.h>

#include "base/text.h"
#include "fetcher/listing.h"
#include "fetcher/xml.h"
#include "format/json_tree.h"
#include "wire/crypto.h"
#include "wire/times.h"

namespace ckfs {
namespace {

constexpr std::int64_t kRenewBefore = 300;  // seconds
constexpr int kDeepestProfile = 5;

std::string_view text_member(const JsonNode& object, std::string_view key) {
  const JsonNode* const member = object.find(key);
  return member != nullptr && member->kind == JsonNode::Kind::String
             ? std::string_view(member->text)
             : std::string_view();
}

std::string get(const std::map<std::string, std::string>& profile, const std::string& key) {
  const auto found = profile.find(key);
  return found == profile.end() ? "" : found->second;
}

std::string sha1_hex(std::string_view text) {
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned size = 0;
  EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(digest.data()), &size,
             EVP_sha1(), nullptr);
  return to_hex(std::string_view(digest).substr(0, size));
}

Failure no_keys(std::string_view thing) {
  return fail(ErrorCode::Corrupt, "{}: no keys in it", thing);
}

}  // namespace

std::string_view aws_domain(std::string_view region) {
  return region.starts_with("cn-") ? "amazonaws.com.cn" : "amazonaws.com";
}

AwsCredentials::AwsCredentials(const ServiceContext& context)
    : context_(context), profiles_(context.here) {}

std::string AwsCredentials::profile_name() const {
  std::string name = context_.here.variable("AWS_PROFILE");
  if (name.empty()) name = context_.here.variable("AWS_DEFAULT_PROFILE");
  return name.empty() ? "default" : name;
}

std::string AwsCredentials::value(const char* variable, std::string_view key) const {
  std::string value = context_.here.variable(variable);
  return value.empty() ? get(profiles_.profile(profile_name()), std::string(key)) : value;
}

std::string AwsCredentials::region() const {
  const std::string region = context_.here.variable("AWS_REGION");
  return region.empty() ? value("AWS_DEFAULT_REGION", "region") : region;
}

std::string AwsCredentials::region_of(const Profile& profile) const {
  std::string found = context_.here.variable("AWS_REGION");
  if (found.empty()) found = get(profile, "region");
  if (found.empty()) found = region();
  return found.empty() ? "us-east-1" : found;
}

std::string AwsCredentials::endpoint_url(std::string_view service) const {
  if (context_.here.is_set("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")) return {};
  std::string variable = "AWS_ENDPOINT_URL_";
  for (const char c : service) variable += static_cast<char>(c - ('a' - 'A') * (c >= 'a'));
  std::string url = context_.here.variable(variable.c_str());
  return url.empty() ? value("AWS_ENDPOINT_URL", "endpoint_url") : url;
}

Result<AwsKeys> AwsCredentials::keys() {
  const std::int64_t now = context_.here.now();
  if (lent_ && (lent_->ends == 0 || now < lent_->ends - kRenewBefore)) return lent_->keys;
  const bool still_good = lent_ && now < lent_->ends;
  // What gave them may be away for a moment: asked once in a while, as long as they are good.
  if (still_good && now < failed_ + 15) return lent_->keys;
  auto found = find();
  if (!found) {
    failed_ = now;
    if (still_good) return lent_->keys;
    return Failure(std::move(found).error());
  }
  lent_ = *std::move(found);
  return lent_->keys;
}

Result<AwsCredentials::Lent> AwsCredentials::find() {
  const Surroundings& here = context_.here;
  const std::string id = here.variable("AWS_ACCESS_KEY_ID");
  const std::string secret = here.variable("AWS_SECRET_ACCESS_KEY");
  if (!id.empty() && !secret.empty()) {
    return Lent{{id, secret, here.variable("AWS_SESSION_TOKEN")}, 0};
  }
  const std::string name = profile_name();
  CKFS_TRY(auto found, of_profile(name, 0));
  if (found) return *std::move(found);
  const std::string token_file = here.variable("AWS_WEB_IDENTITY_TOKEN_FILE");
  const std::string role = here.variable("AWS_ROLE_ARN");
  if (!token_file.empty() && !role.empty()) {
    return web_identity(role, token_file, here.variable("AWS_ROLE_SESSION_NAME"));
  }
  CKFS_TRY(found, of_container());
  if (found) return *std::move(found);
  CKFS_TRY(found, of_machine());
  if (found) return *std::move(found);
  return fail(ErrorCode::Io,
              "no AWS credentials: none in the environment (AWS_ACCESS_KEY_ID), in profile {} of "
              "~/.aws, of a web identity, of a container or of this machine (a public bucket: "
              "--anonymous)",
              quote(name));
}

Result<std::optional<AwsCredentials::Lent>> AwsCredentials::of_profile(const std::string& name,
                                                                       int depth) {
  const Profile its = profiles_.profile(name);
  const auto maybe = [](Result<Lent> lent) -> Result<std::optional<Lent>> {
    if (!lent) return Failure(std::move(lent).error());
    return std::optional<Lent>(*std::move(lent));
  };
  const std::string role = get(its, "role_arn");
  const std::string token_file = get(its, "web_identity_token_file");
  if (!role.empty() && !token_file.empty()) {
    return maybe(web_identity(role, token_file, get(its, "role_session_name")));
  }
  if (!role.empty() && depth < kDeepestProfile) return maybe(assume_role(its, name, depth));
  if (!get(its, "sso_start_url").empty() || !get(its, "sso_session").empty()) {
    return maybe(single_sign_on(its, name));
  }
  const std::string id = get(its, "aws_access_key_id");
  const std::string secret = get(its, "aws_secret_access_key");
  if (!id.empty() && !secret.empty()) {
    return std::optional<Lent>(Lent{{id, secret, get(its, "aws_session_token")}, 0});
  }
  if (!get(its, "credential_process").empty()) return maybe(of_process(name));
  return std::optional<Lent>();
}

Result<AwsCredentials::Lent> AwsCredentials::of_process(const std::string& name) {
  const std::string thing = fmt::format("profile {}: credential_process", quote(name));
  const auto output = context_.here.run_credential_process(name);
  if (!output) return Failure(output.error().within(thing));
  CKFS_TRY(const JsonNode tree, parse_json_tree(*output, thing, JsonKeys::LastWins));
  const JsonNode* const version = tree.find("Version");
  if (version == nullptr || version->number != 1) {
    return fail(ErrorCode::Unsupported, "{}: its output is not of \"Version\": 1", thing);
  }
  Lent lent{{std::string(text_member(tree, "AccessKeyId")),
             std::string(text_member(tree, "SecretAccessKey")),
             std::string(text_member(tree, "SessionToken"))},
            0};
  if (const auto ends = text_member(tree, "Expiration"); !ends.empty()) {
    lent.ends = parse_iso_time(ends).value_or(context_.here.now() + 900);
  }
  if (lent.keys.id.empty() || lent.keys.secret.empty()) return no_keys(thing);
  return lent;
}

Result<AwsCredentials::Lent> AwsCredentials::assume_role(const Profile& profile,
                                                         const std::string& name, int depth) {
  const std::string thing =
      fmt::format("profile {}: role {}", quote(name), quote(get(profile, "role_arn")));
  std::optional<Lent> source;
  const std::string from = get(profile, "source_profile");
  const std::string provider = get(profile, "credential_source");
  if (!from.empty() && from != name) {
    CKFS_TRY(source, of_profile(from, depth + 1));
  } else if (!from.empty()) {
    // A profile that is its own source has keys beside its role.
    source = Lent{{get(profile, "aws_access_key_id"), get(profile, "aws_secret_access_key"),
                   get(profile, "aws_session_token")},
                  0};
  } else if (provider == "Environment") {
    const Surroundings& here = context_.here;
    source = Lent{{here.variable("AWS_ACCESS_KEY_ID"), here.variable("AWS_SECRET_ACCESS_KEY"),
                   here.variable("AWS_SESSION_TOKEN")},
                  0};
  } else if (provider == "EcsContainer") {
    CKFS_TRY(source, of_container());
  } else if (provider == "Ec2InstanceMetadata") {
    CKFS_TRY(source, of_machine());
  }
  if (!source || source->keys.id.empty() || source->keys.secret.empty()) {
    return fail(ErrorCode::Io, "{}: no keys to take it with ({})", thing,
                from.empty() ? "credential_source" : "source_profile");
  }
  std::string query = fmt::format(
      "Action=AssumeRole&Version=2011-06-15&RoleArn={}&RoleSessionName={}",
      percent_encode(get(profile, "role_arn")),
      percent_encode(
          get(profile, "role_session_name").empty() ? "ckfs" : get(profile, "role_session_name")));
  if (const std::string id = get(profile, "external_id"); !id.empty()) {
    query += "&ExternalId=" + percent_encode(id);
  }
  if (const std::string seconds = get(profile, "duration_seconds"); !seconds.empty()) {
    query += "&DurationSeconds=" + percent_encode(seconds);
  }
  return ask_sts(query, &source->keys, thing);
}

Result<AwsCredentials::Lent> AwsCredentials::web_identity(const std::string& role,
                                                          const std::string& token_file,
                                                          const std::string& session) {
  // Read each time: the file is renewed by others, and the keys end before the token does.
  CKFS_TRY(const std::string token, context_.here.read_file(token_file));
  const std::string query = fmt::format(
      "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={}&RoleSessionName={}&"
      "WebIdentityToken={}",
      percent_encode(role), percent_encode(session.empty() ? "ckfs" : session),
      percent_encode(trim(token)));
  return ask_sts(query, nullptr, fmt::format("role {} of a web identity", quote(role)));
}

Result<AwsCredentials::Lent> AwsCredentials::ask_sts(std::string_view query, const AwsKeys* signer,
                                                     std::string_view thing) {
  const std::string region = region_of(profiles_.profile(profile_name()));
  std::string endpoint = endpoint_url("sts");
  if (endpoint.empty()) endpoint = fmt::format("https://sts.{}.{}", region, aws_domain(region));
  CKFS_TRY(Url url, parse_endpoint(endpoint, "endpoint of STS"));
  url.path = url.path.empty() ? "/" : url.path;
  HttpRequest request{.method = "POST",
                      .url = url,
                      .headers = {{"content-type", "application/x-www-form-urlencoded"}},
                      .body = std::string(query)};
  if (signer != nullptr) {
    sign_aws({.method = "POST",
              .host = url.authority(),
              .path = url.path,
              .query = "",
              .body = request.body},
             *signer, {region, "sts"}, context_.here.now(), request.headers);
  }
  CKFS_TRY(const HttpAnswer answer, call(context_, request, thing));
  if (!answer.is_success()) return Failure(answer_error(thing, answer));
  Lent lent;
  CKFS_TRY_VOID(read_xml(answer.body, thing, [&](std::string_view path, std::string_view text) {
    if (path.ends_with("/Credentials/AccessKeyId")) lent.keys.id = text;
    if (path.ends_with("/Credentials/SecretAccessKey")) lent.keys.secret = text;
    if (path.ends_with("/Credentials/SessionToken")) lent.keys.session_token = text;
    if (path.ends_with("/Credentials/Expiration")) {
      lent.ends = parse_iso_time(trim(text)).value_or(context_.here.now() + 900);
    }
    return true;
  }));
  if (lent.keys.id.empty() || lent.keys.secret.empty()) return no_keys(thing);
  return lent;
}

Result<AwsCredentials::Lent> AwsCredentials::single_sign_on(const Profile& profile,
                                                            const std::string& name) {
  const std::string thing = fmt::format("profile {}: single sign-on", quote(name));
  const std::string session = get(profile, "sso_session");
  const Profile section = profiles_.section("sso-session " + session);
  const Profile shared = !session.empty() && !section.empty() ? section : profile;
  const std::string key = session.empty() ? get(profile, "sso_start_url") : session;
  const std::string path =
      context_.here.at_home(fmt::format(".aws/sso/cache/{}.json", sha1_hex(key)));
  const auto log_in = [&] {
    return fail(ErrorCode::Io, "{}: you are not logged in (aws sso login --profile {})", thing,
                name);
  };
  const auto text = context_.here.read_file(path);
  if (!text) return log_in();
  CKFS_TRY(const JsonNode token, parse_json_tree(*text, thing, JsonKeys::LastWins));
  const auto ends = parse_iso_time(text_member(token, "expiresAt"));
  if (!ends || *ends <= context_.here.now()) return log_in();
  const std::string region = get(shared, "sso_region");
  std::string endpoint = context_.here.variable("AWS_ENDPOINT_URL_SSO");
  if (endpoint.empty())
    endpoint = fmt::format("https://portal.sso.{}.{}", region, aws_domain(region));
  CKFS_TRY(Url url, parse_endpoint(endpoint, "endpoint of single sign-on"));
  url.path += "/federation/credentials";
  url.query =
      fmt::format("role_name={}&account_id={}", percent_encode(get(profile, "sso_role_name")),
                  percent_encode(get(profile, "sso_account_id")));
  const HttpRequest request{
      .url = url,
      .headers = {{"x-amz-sso_bearer_token", std::string(text_member(token, "accessToken"))}}};
  CKFS_TRY(const HttpAnswer answer, call(context_, request, thing));
  if (answer.status == 401) return log_in();
  if (!answer.is_success()) return Failure(answer_error(thing, answer));
  CKFS_TRY(const JsonNode tree, parse_json_tree(answer.body, thing, JsonKeys::LastWins));
  const JsonNode* const its = tree.find("roleCredentials");
  if (its == nullptr) return no_keys(thing);
  const JsonNode* const time = its->find("expiration");  // in milliseconds
  Lent lent{{std::string(text_member(*its, "accessKeyId")),
             std::string(text_member(*its, "secretAccessKey")),
             std::string(text_member(*its, "sessionToken"))},
            context_.here.now() + 900};
  if (time != nullptr && time->number > 0 && time->number < 1e16) {
    lent.ends = std::llround(time->number / 1000);
  }
  if (lent.keys.id.empty() || lent.keys.secret.empty()) return no_keys(thing);
  return lent;
}

namespace {

/// What the services of containers and machines answer.
Result<std::pair<AwsKeys, std::int64_t>> parse_keys(std::string_view text, std::string_view thing,
                                                    std::int64_t now) {
  CKFS_TRY(const JsonNode tree, parse_json_tree(text, thing, JsonKeys::LastWins));
  AwsKeys keys{std::string(text_member(tree, "AccessKeyId")),
               std::string(text_member(tree, "SecretAccessKey")),
               std::string(text_member(tree, "Token"))};
  if (keys.id.empty() || keys.secret.empty()) return no_keys(thing);
  return std::pair(std::move(keys),
                   parse_iso_time(text_member(tree, "Expiration")).value_or(now + 900));
}

}  // namespace

Result<std::optional<AwsCredentials::Lent>> AwsCredentials::of_container() {
  constexpr std::string_view kThing = "the container's credentials";
  const Surroundings& here = context_.here;
  const std::string relative = here.variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string full = here.variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (relative.empty() && full.empty()) return std::optional<Lent>();
  CKFS_TRY(Url url, parse_url(relative.empty() ? full : "http://169.254.170.2" + relative));
  const bool is_known = url.secure || is_loopback_host(url.host) || url.host == "169.254.170.2" ||
                        url.host == "169.254.170.23" || url.host == "[fd00:ec2::23]";
  if (!is_known) {
    return fail(ErrorCode::InvalidArgument,
                "AWS_CONTAINER_CREDENTIALS_FULL_URI: {} is neither this machine nor https",
                url.origin());
  }
  HttpRequest request{.url = url, .headers = {}, .to_machine = true};
  std::string token = here.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  const std::string token_file = here.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!token_file.empty()) {
    CKFS_TRY(const std::string text, here.read_file(token_file));
    token = trim(text);
  }
  if (!token.empty()) request.headers.emplace_back("authorization", token);
  CKFS_TRY(const HttpAnswer answer, call(context_, request, kThing));
  if (!answer.is_success()) return Failure(answer_error(kThing, answer));
  CKFS_TRY(auto found, parse_keys(answer.body, kThing, here.now()));
  return std::optional<Lent>(Lent{std::move(found.first), found.second});
}

Result<std::optional<AwsCredentials::Lent>> AwsCredentials::of_machine() {
  constexpr std::string_view kThing = "the machine's credentials";
  // Elsewhere than on EC2 nothing answers: asked once, for a second.
  constexpr std::int64_t kMost = 1000;
  const Surroundings& here = context_.here;
  if (here.is_set("AWS_EC2_METADATA_DISABLED")) return std::optional<Lent>();
  std::string endpoint = here.variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (endpoint.empty()) endpoint = "http://169.254.169.254";
  CKFS_TRY(Url url, parse_endpoint(endpoint, "AWS_EC2_METADATA_SERVICE_ENDPOINT"));
  const std::string base = url.path;
  const auto ask = [&](std::string_view method, std::string_view path, HttpHeaders headers) {
    url.path = base + std::string(path);
    return context_.http.fetch({.method = std::string(method),
                                .url = url,
                                .headers = std::move(headers),
                                .most_milliseconds = kMost,
                                .to_machine = true});
  };
  const HttpAnswer token =
      ask("PUT", "/latest/api/token", {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}});
  if (!token.is_success()) return std::optional<Lent>();
  const HttpHeaders headers = {{"x-aws-ec2-metadata-token", std::string(trim(token.body))}};
  constexpr std::string_view kRoles = "/latest/meta-data/iam/security-credentials/";
  const HttpAnswer roles = ask("GET", kRoles, headers);
  if (!roles.is_success()) return std::optional<Lent>();  // a machine without a role
  const std::string_view role = trim(std::string_view(roles.body).substr(0, roles.body.find('\n')));
  const HttpAnswer answer = ask("GET", std::string(kRoles) + percent_encode(role), headers);
  if (!answer.is_success()) return Failure(answer_error(kThing, answer));
  CKFS_TRY(auto found, parse_keys(answer.body, kThing, here.now()));
  return std::optional<Lent>(Lent{std::move(found.first), found.second});
}

}  // namespace ckfs
