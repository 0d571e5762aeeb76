// The two system calls mount(2) and umount(2), or the set-user-ID program fusermount3 where the
// user may not make them; and the way to abort what is mounted.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <sys/types.h>
#include <unistd.h>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"

namespace ckfs {

struct KernelMountOptions {
  std::string source;  // the device in /proc/mounts
  bool allow_other = false;
  /// Whose mount it is; root mounts for others.
  uid_t user = ::geteuid();
  gid_t group = ::getegid();
};

/// Where fusermount3 is looked for, in this order: in $PATH, and where mount(8) starts its helpers
/// without one, in the usual places.
std::vector<std::string> fusermount_places();

/// Mounts a read-only FUSE filesystem at `target` and gives the /dev/fuse that speaks for it; the
/// kernel waits for an answer on it from now on. Errors: Io, with what the user can do about it;
/// NotFound (the target is gone).
Result<UniqueFd> mount_device(const std::filesystem::path& target,
                              const KernelMountOptions& options);

enum class Detach : std::uint8_t { WhenIdle, Now };

/// Takes the mount at `target` away: an error where it is in use (WhenIdle), or out of sight at
/// once while open files live on (Now). Never asks the daemon. Errors: Io (EBUSY: in use).
Result<void> unmount_target(const std::filesystem::path& target, Detach detach);

/// The st_dev of the topmost file system at `path`; nullopt: the path leads nowhere. Asks the
/// kernel only, so it never waits for a file system that does not answer.
std::optional<dev_t> device_at(const std::filesystem::path& path);

/// Takes the mount at `target` away at once where `device` is still what lies on top of it. False:
/// it is not (another file system was mounted over it, it was moved or is gone already), and
/// nothing was done. Errors: Io.
Result<bool> unmount_own(const std::filesystem::path& target, dev_t device);

/// Where a byte is written to abort the connection of the FUSE file system `device`: every request
/// then fails, also those of a mount that is out of sight. To hold it keeps nothing mounted.
/// Invalid where there is no way to it: the system has fusectl not mounted, and the caller may not
/// mount it.
UniqueFd open_abort(dev_t device);

}  // namespace ckfs
