// One function for each request of the kernel that ckfs answers.
#pragma once

#define FUSE_USE_VERSION 312
#include <functional>
#include <fuse_lowlevel.h>
#include <string>
#include <sys/types.h>

#include "base/reads_under_way.h"
#include "fs/filesystem.h"

namespace ckfs {

/// What the operations work on: the user data of the FUSE session. Outlives it; does not change
/// while the session answers, so all its threads share it.
struct Served {
  Filesystem& filesystem;
  bool direct = false;  // FOPEN_DIRECT_IO for every file
  bool others = false;  // other users than the owner reach the mount
  /// Puts bytes of a file into the kernel's page cache, from another thread.
  std::function<bool(InodeNumber inode, std::uint64_t offset, std::span<const std::byte>)> deliver =
      {};
  uid_t user = 0;  // owner of everything: the user who mounted
  gid_t group = 0;
  ReadsUnderWay* reads = nullptr;  // stops reads whose readers are gone
  /// Asks the kernel, later and from another thread, to forget a name in the root.
  std::function<void(std::string)> forget_name;
};

fuse_lowlevel_ops make_operations();

}  // namespace ckfs
