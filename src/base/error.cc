#include "base/error.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ckfs {

Failure system_failure(int error, std::string_view thing, std::string_view what) {
  // ENOENT is apart because "not there" has its own exit message and errno further out.
  const ErrorCode code = error == ENOENT ? ErrorCode::NotFound : ErrorCode::Io;
  return Failure(Error(code, fmt::format("{}: {}: {}", thing, what, std::strerror(error)), error));
}

std::string one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    if (c == '\n' || c == '\t') {
      line += ' ';
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      line += c;
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

void check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "ckfs: %s:%d: broken invariant: %s\n", file, line, condition);
  std::abort();
}

}  // namespace ckfs
