#include "base/error.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ckfs {

Failure system_failure(int error, std::string_view thing, std::string_view what) {
  // ENOENT is separate because "not found" has its own exit message and errno further out.
  const ErrorCode code = error == ENOENT ? ErrorCode::NotFound : ErrorCode::Io;
  return Failure(Error(code, fmt::format("{}: {}: {}", thing, what, std::strerror(error)), error));
}

void check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "ckfs: %s:%d: broken invariant: %s\n", file, line, condition);
  std::abort();
}

}  // namespace ckfs
