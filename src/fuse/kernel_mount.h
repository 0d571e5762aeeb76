// The two system calls mount(2) and umount(2), or the set-user-ID program fusermount3 where the
// user may not make them; and the way to abort a mount.
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

/// Where to look for fusermount3, in this order: in $PATH, or without one, as mount(8) starts its
/// helpers, in the usual places.
std::vector<std::string> fusermount_places();

/// Mounts a read-only FUSE filesystem at `target` and gives the /dev/fuse that speaks for it; the
/// kernel waits for an answer on it from now on. Errors: Io, with what the user can do about it;
/// NotFound (the target is gone).
Result<UniqueFd> mount_device(const std::filesystem::path& target,
                              const KernelMountOptions& options);

/// Takes over a descriptor of /dev/fuse that another program has opened and mounted. Errors:
/// InvalidArgument (no such descriptor, not of /dev/fuse, not mounted).
Result<UniqueFd> take_device(int number);

enum class Detach : std::uint8_t { WhenIdle, Now };

/// Unmounts `target`. WhenIdle: an error if it is in use. Now: detaches it at once; open files stay
/// usable. Never asks the daemon. Errors: Io (EBUSY: in use).
Result<void> unmount_target(const std::filesystem::path& target, Detach detach);

/// The st_dev of the topmost file system at `path`; nullopt: the path leads nowhere. Asks the
/// kernel only, so it never waits for a file system that does not answer.
std::optional<dev_t> device_at(const std::filesystem::path& path);

/// Unmounts `target` at once if `device` is still the topmost mount there. False: it is not
/// (another file system was mounted over it, it was moved or is gone already), and nothing was
/// done. Errors: Io.
Result<bool> unmount_own(const std::filesystem::path& target, dev_t device);

/// A file to write a byte to, which aborts the connection of the FUSE file system `device`: every
/// request then fails, also those of a detached mount. Holding it keeps nothing mounted. Invalid if
/// there is no way: fusectl is not mounted, and the caller may not mount it.
UniqueFd open_abort(dev_t device);

}  // namespace ckfs
