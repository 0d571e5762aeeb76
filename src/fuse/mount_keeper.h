// Mounting and unmounting, by a process of its own.
//
// Both need what a daemon that parses strangers' files should not have: CAP_SYS_ADMIN, or a program
// that is set-user-ID. So they are done by a process that is forked before the first such file is
// opened. It knows one mountpoint, reads no file of a user, and does four things when it is asked:
// mount there once, take that mount away if it is still what lies there, abort its connection, and
// look whether a thread that has asked for bytes still waits (the confined daemon sees no /proc).
// It ends with whoever started it, and leaves the mount as it is then.
//
// Unless whoever started it cannot end: a daemon that is killed while it delivers a page may wait
// in the kernel for that page, which a reader has locked who waits for the daemon. Its first thread
// does not wait so: when that has ended, the connection is aborted, and both go on. A daemon that
// dumps core is not seen so (the kernel does not say when its threads end), nor is one that is
// killed together with its keeper; and both wait on where there is no way to abort (open_abort()),
// or no thread for the keeper to watch with (pids.max).
#pragma once

#include <filesystem>
#include <string>
#include <sys/types.h>

#include "base/error.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "fuse/kernel_mount.h"

namespace ckfs {

/// Safe for concurrent use by several threads.
class MountKeeper {
 public:
  /// Forks it. `target` is canonical. Requires: the process has one thread. Errors: Io.
  static Result<MountKeeper> start(std::filesystem::path target, const KernelMountOptions& options);
  MountKeeper(MountKeeper&& other) noexcept;
  MountKeeper& operator=(MountKeeper&&) = delete;
  /// Waits until the process has ended.
  ~MountKeeper();

  const std::filesystem::path& target() const { return target_; }

  /// mount_device() there. Errors: Io (with what that said; the process is gone; it was asked
  /// before), OutOfMemory.
  Result<UniqueFd> mount();
  /// Takes the mount away at once. False: it is not on top of its path any more, and nothing was
  /// done. Errors: Io, OutOfMemory.
  Result<bool> unmount();
  /// Ends the mount's connection, wherever the mount is: every request fails, and whoever waits in
  /// the kernel goes on. False: the system shows no way to that (open_abort()). Errors: Io,
  /// OutOfMemory.
  Result<bool> abort();
  /// Whether that thread is being killed, or has ended and not only is `dying`. False, too, where
  /// the system does not show it. Errors: Io, OutOfMemory.
  Result<bool> is_gone(pid_t thread, bool dying);

 private:
  struct Answer;
  MountKeeper(std::filesystem::path target, pid_t process, UniqueFd channel)
      : target_(std::move(target)), process_(process), channel_(std::move(channel)) {}
  struct Request;
  Result<Answer> ask(const Request& request);
  Result<Answer> exchange(const Request& request);

  std::filesystem::path target_;
  pid_t process_;
  Mutex mutex_;  // one request at a time
  UniqueFd channel_;
};

}  // namespace ckfs
