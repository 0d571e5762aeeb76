// A token for Google Cloud Storage, as Application Default Credentials find it: the file that
// GOOGLE_APPLICATION_CREDENTIALS names; gcloud's own; the machine's metadata server. Kinds of
// files: service_account, authorized_user, external_account (with a file or URL of its token) and
// impersonated_service_account. Secrets never come into a text. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "fetcher/service.h"
#include "format/json_tree.h"

namespace ckfs {

class GcsCredentials {
 public:
  explicit GcsCredentials(const ServiceContext& context) : context_(context) {}

  /// "Bearer …"; waits for a service where the token must be asked for. Errors: Io (none were
  /// found; a service refuses, with its words), Corrupt, Unsupported (a file of another kind).
  Result<std::string> authorization();
  /// A server says that the token has ended.
  void forget() { lent_.reset(); }

 private:
  struct Token {
    std::string text;
    std::int64_t ends = 0;
  };

  Result<Token> find();
  Result<Token> of_file(const JsonNode& file, std::string_view thing, bool may_impersonate);
  Result<Token> of_service_account(const JsonNode& file, std::string_view thing);
  Result<Token> of_user(const JsonNode& file, std::string_view thing);
  Result<Token> of_external_account(const JsonNode& file, std::string_view thing);
  Result<Token> impersonate(std::string_view url, std::string_view source_token,
                            std::string_view thing);
  Result<std::string> subject_token(const JsonNode& source, std::string_view thing);
  Result<Token> of_machine();
  Result<Token> ask(const std::string& url, std::string body, std::string_view thing);

  const ServiceContext context_;
  std::optional<Token> lent_;
};

}  // namespace ckfs
