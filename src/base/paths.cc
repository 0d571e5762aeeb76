#include "base/paths.h"

#include <system_error>

namespace ckfs {

Result<std::filesystem::path> absolute_path(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return system_failure(error.value(), path.native(), "cannot be resolved");
  std::filesystem::path walked;
  for (const std::filesystem::path& part : absolute) {
    if (part == "..") {
      walked = std::filesystem::canonical(walked, error).parent_path();
      if (error) return system_failure(error.value(), path.native(), "cannot be resolved");
    } else if (!part.empty() && part != ".") {
      walked /= part;
    }
  }
  return walked;
}

}  // namespace ckfs
