// Mounting and unmounting, by a process of its own.
//
// Both need CAP_SYS_ADMIN or a set-user-ID program, which a daemon that parses untrusted files
// should not have. So a separate process does them, forked before the first such file is opened. It
// knows one mountpoint, reads no file of a user, and does four things on request: mount there once;
// unmount if that mount is still the topmost one; abort its connection; and look whether a thread
// that has asked for bytes still waits (the confined daemon sees no /proc). It ends with the
// daemon, and then leaves the mount as it is.
//
// A killed daemon can deadlock in the kernel: while it delivers a page, it may wait for the page's
// lock, whose holder is a reader that waits for the daemon. The daemon's first thread never waits
// like that: when that thread has ended, the keeper aborts the connection, and both continue. The
// keeper does not notice a daemon that dumps core (the kernel does not tell when its threads end),
// or that is killed together with the keeper. And both keep waiting where the connection cannot be
// aborted (open_abort()), or the keeper has no thread to watch with (pids.max).
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
  /// Forks the keeper. `target` is canonical. Requires: the process has one thread. Errors: Io.
  static Result<MountKeeper> start(std::filesystem::path target, const KernelMountOptions& options);
  /// No process: another program has mounted `device`, and unmounts it. `target` is what the log
  /// calls the mount.
  static MountKeeper adopt(std::filesystem::path target, UniqueFd device);
  MountKeeper(MountKeeper&& other) noexcept;
  MountKeeper& operator=(MountKeeper&&) = delete;
  /// Waits until the process has ended.
  ~MountKeeper();

  const std::filesystem::path& target() const { return target_; }
  /// Whether another program has mounted: then unmount(), abort() and is_gone() give false, and the
  /// target need not be a path of this process.
  bool is_adopted() const { return process_ < 0; }

  /// Calls mount_device() in the keeper. Errors: Io (with the message of mount_device(); the keeper
  /// is gone; it has mounted before), OutOfMemory.
  Result<UniqueFd> mount();
  /// Unmounts at once. False: another mount covers the path, or the mount is gone; nothing was
  /// done. Errors: Io, OutOfMemory.
  Result<bool> unmount();
  /// Ends the mount's connection, wherever the mount is: every request fails, and threads that wait
  /// in the kernel continue. False: the system offers no way (open_abort()). Errors: Io,
  /// OutOfMemory.
  Result<bool> abort();
  /// Whether the thread is being killed or, unless `dying`, has ended. Also false where the system
  /// does not show it. Errors: Io, OutOfMemory.
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
  UniqueFd adopted_;
};

}  // namespace ckfs
