// Where AWS's own tools find the keys of a caller, in their order: the environment; the profile in
// ~/.aws/credentials and ~/.aws/config (a role with its source, a web identity, single sign-on,
// keys, a credential_process); the web identity of the environment (EKS); the container's service
// (ECS, EKS Pod Identity); the machine's (EC2, IMDSv2). Formats: "AWS SDKs and Tools Reference
// Guide".
//
// Keys that end are asked for again before they do. Secrets never come into a text. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "fetcher/aws_profiles.h"
#include "fetcher/service.h"
#include "wire/sigv4.h"

namespace ckfs {

/// "amazonaws.com", or what it is for regions in China.
std::string_view aws_domain(std::string_view region);

class AwsCredentials {
 public:
  explicit AwsCredentials(const ServiceContext& context);

  /// The keys of now; waits for a service where they must be asked for. Errors: Io (none were
  /// found: the text says where they were looked for; a source of them refuses, with its words).
  Result<AwsKeys> keys();

  /// A server says that the keys have ended: the next keys() asks for others.
  void forget() { lent_.reset(); }

  /// The region that the environment or the profile names; empty: none.
  std::string region() const;
  /// The endpoint that they name for a service ("s3"); empty: none.
  std::string endpoint_url(std::string_view service) const;

 private:
  /// Keys, and when they end (0: never).
  struct Lent {
    AwsKeys keys;
    std::int64_t ends = 0;
  };
  using Profile = AwsProfiles::Profile;

  Result<Lent> find();
  Result<std::optional<Lent>> of_profile(const std::string& name, int depth);
  Result<Lent> assume_role(const Profile& profile, const std::string& name, int depth);
  Result<Lent> web_identity(const std::string& role, const std::string& token_file,
                            const std::string& session);
  Result<Lent> single_sign_on(const Profile& profile, const std::string& name);
  Result<Lent> of_process(const std::string& name);
  Result<std::optional<Lent>> of_container();
  Result<std::optional<Lent>> of_machine();
  Result<Lent> ask_sts(std::string_view query, const AwsKeys* signer, std::string_view thing);

  std::string profile_name() const;
  std::string value(const char* variable, std::string_view key) const;
  std::string region_of(const Profile& profile) const;

  const ServiceContext context_;
  const AwsProfiles profiles_;
  std::optional<Lent> lent_;
  std::int64_t failed_ = 0;  // when the last attempt to renew them failed
};

}  // namespace ckfs
