// A machine of a test's own: variables, files and the time that a fetcher sees.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "fetcher/service.h"

namespace ckfs::test {

struct Machine {
  std::map<std::string, std::string> variables = {{"HOME", "/home/u"},
                                                  {"AWS_EC2_METADATA_DISABLED", "true"}};
  std::map<std::string, std::string> files = {};
  std::int64_t now = 1'000'000'000;  // 2001-09-09T01:46:40Z
  Surroundings here{.variable =
                        [this](const char* name) {
                          const auto found = variables.find(name);
                          return found == variables.end() ? "" : found->second;
                        },
                    .read_file = [this](const std::string& path) -> Result<std::string> {
                      const auto found = files.find(path);
                      if (found == files.end())
                        return fail(ErrorCode::NotFound, "{}: not there", path);
                      return found->second;
                    },
                    .now = [this] { return now; }};
  std::unique_ptr<HttpClient> http = make_http();
  ServiceContext context{*http, here};

  Machine() = default;
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  static std::unique_ptr<HttpClient> make_http() {
    HttpOptions options;
    options.patience.timeout = FetchDuration(2000);
    options.patience.backoff_first = FetchDuration(1);
    return HttpClient::make(options).value();
  }
};

}  // namespace ckfs::test
