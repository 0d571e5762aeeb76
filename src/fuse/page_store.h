// Puts bytes into the kernel's page cache ahead of a reader, which then finds them without asking.
//
// That is why the mount leaves the kernel's own read-ahead small: it asks for bytes behind each
// read, wanted or not, while the engine knows where a tensor ends.
#pragma once

#define FUSE_USE_VERSION 312
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fuse_lowlevel.h>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace ckfs {

/// Safe for concurrent use by several threads.
class PageStore {
 public:
  explicit PageStore(fuse_session* session) : session_(session) {}

  /// False: the kernel does not take them all (it may have forgotten the file), or the mount is
  /// about to end.
  bool put(fuse_ino_t inode, std::uint64_t offset, std::span<const std::byte> bytes);

  /// Puts nothing more from now on. False: at `last` a put() is still under way; it waits for a
  /// page that an unanswered read has locked.
  bool stop(std::chrono::steady_clock::time_point last);

 private:
  /// A pipe for messages to the kernel; nullopt where the system gives no (large) pipes.
  struct Pipe {
    UniqueFd out, in;
    std::size_t pages = 0;  // that it takes
  };
  enum class Sent : std::uint8_t { Yes, No, Refused };

  std::optional<Pipe> take_pipe();
  Sent send(const Pipe& pipe, fuse_ino_t inode, std::uint64_t offset,
            std::span<const std::byte> bytes) const;
  bool send_copied(fuse_ino_t inode, std::uint64_t offset, std::span<const std::byte> bytes) const;
  bool send_all(fuse_ino_t inode, std::uint64_t offset, std::span<const std::byte> bytes);

  fuse_session* const session_;
  Mutex mutex_;
  CondVar left_;
  std::vector<Pipe> pipes_ CKFS_GUARDED_BY(mutex_);  // not in use now
  unsigned inside_ CKFS_GUARDED_BY(mutex_) = 0;
  bool stopping_ CKFS_GUARDED_BY(mutex_) = false;
};

}  // namespace ckfs
