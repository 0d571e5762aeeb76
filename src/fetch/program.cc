// A build tree has the two programs side by side; an installation keeps the one that no user calls
// below libexec. The place is looked for from the running program first, so that an installation
// that was moved as a whole works.
#include "fetch/program.h"

#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <unistd.h>

namespace ckfs {
namespace {

constexpr const char* kFetcherName = "ckfs-fetcher";

constexpr std::array kSecrets = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY",
                                 "AWS_SESSION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN"};

std::filesystem::path own_directory() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0) return {};
  return std::filesystem::path(std::string(path.data(), static_cast<std::size_t>(length)))
      .parent_path();
}

}  // namespace

std::optional<std::string> find_fetcher() {
  if (const char* const named = std::getenv("CKFS_FETCHER"); named != nullptr && *named != '\0') {
    return named;  // where it is not, starting it says so
  }
  const std::filesystem::path own = own_directory();
  for (const std::filesystem::path& path :
       {own / kFetcherName, own.parent_path() / "libexec/ckfs" / kFetcherName,
        std::filesystem::path(CKFS_LIBEXEC_DIR) / kFetcherName}) {
    if (!path.has_parent_path() || path.is_relative()) continue;
    if (::access(path.c_str(), X_OK) == 0) return path.string();
  }
  return std::nullopt;
}

void forget_credentials() {
  for (const char* const name : kSecrets) {
    // The environment is the process's own memory, which /proc/PID/environ shows.
    if (char* const value = std::getenv(name)) std::memset(value, '*', std::strlen(value));
    ::unsetenv(name);
  }
}

}  // namespace ckfs
