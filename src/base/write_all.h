// All bytes of a span to a file. write(2) and its kin may write less than they are asked to.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <sys/types.h>

namespace ckfs {

/// Calls `write_some(bytes, offset)` until all of `bytes` are written from `offset` on, and again
/// where a signal interrupted it. It returns what pwrite(2) returns, and sets errno as that does.
/// Returns 0, or the errno of the call that failed: ENOSPC for one that writes nothing and reports
/// no error, as some file systems do on a full disk.
template <typename WriteSome>
[[nodiscard]] int write_all(std::span<const std::byte> bytes, std::uint64_t offset,
                            WriteSome&& write_some) {
  while (!bytes.empty()) {
    const ssize_t written = write_some(bytes, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    if (written == 0) return ENOSPC;
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace ckfs
