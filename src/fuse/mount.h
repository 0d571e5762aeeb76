// The FUSE skin: kernel requests to src/fs and back. Every operation is trace, call, reply.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "base/error.h"
#include "fs/filesystem.h"

namespace ckfs {

struct MountOptions {
  std::string source;  // shown as the device in /proc/mounts: "ckfs#<source>"
  bool allow_other = false;
  /// FOPEN_DIRECT_IO for all files: the fast way to copy out once (no page cache, no shared mmap).
  bool direct = false;
  unsigned threads = 0;  // FUSE threads; 0: max(2, CPUs)
};

/// Mounts at `mountpoint`, calls `ready` once the mount answers, and serves until it is unmounted
/// or SIGTERM/SIGINT arrives; then unmounts. Errors: InvalidArgument (mountpoint absent, not a
/// directory), Io (no /dev/fuse, no permission; the message says what to do).
Result<void> serve_mount(Filesystem& filesystem, const std::filesystem::path& mountpoint,
                         const MountOptions& options, const std::function<void()>& ready);

/// Unmounts `mountpoint`, also one whose daemon is dead. Errors: InvalidArgument (not a ckfs
/// mount), Io (busy, no permission).
Result<void> unmount(const std::filesystem::path& mountpoint);

}  // namespace ckfs
