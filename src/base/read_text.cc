#include "base/read_text.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace ckfs {

Result<std::string> read_text_file(const std::string& path, std::size_t most) {
  // Opens a named pipe without waiting for a writer. Then waits for the text, if there is a writer.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return system_failure(errno, path, "open");
  if (::fcntl(file.get(), F_SETFL, 0) != 0) return system_failure(errno, path, "open");
  std::string text(most + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_failure(errno, path, "read");
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  return text.substr(0, size);  // no more memory than the text has: callers keep it
}

}  // namespace ckfs
