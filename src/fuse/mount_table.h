// The mounts of this machine, as the kernel reports them, and how paths name mountpoints.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ckfs {

inline constexpr std::string_view kFilesystemType = "fuse.ckfs";

struct MountEntry {
  std::string target;
  std::string type;          // "fuse.ckfs"
  std::string source;        // the mounted source
  std::string options = {};  // those of the file system: "rw,user_id=0,group_id=0,allow_other"
};

/// The lines of a /proc/PID/mountinfo (proc(5)); lines that are not of that form are left out.
std::vector<MountEntry> parse_mountinfo(std::string_view text);

/// The topmost mount at exactly `target`. Errors: Io.
Result<std::optional<MountEntry>> find_mount(const std::filesystem::path& target);

/// The mounts of ckfs that are on top of their paths, in the order in which they were made. Errors:
/// Io.
Result<std::vector<MountEntry>> ckfs_mounts();
/// Those among them that the caller may end: root all, another user its own.
Result<std::vector<MountEntry>> own_mounts();

/// `path`, absolute and without symbolic links. A mount at its last part is not asked, because it
/// may be dead. A last part that does not exist, or is a link that leads nowhere, stays as it is.
/// Errors: Io, NotFound (its directory is not there).
Result<std::filesystem::path> resolve_mountpoint(const std::filesystem::path& path);

enum class Answers : std::uint8_t {
  Yes,    // also a directory that is not a mount
  Never,  // a mount whose daemon is gone
  Late,   // not within two seconds: its daemon hangs, is stopped, or gets no CPU
};
/// How the mount at `path` answers. A new process asks it; where none can be started, this one
/// asks, and waits without a limit. Zombies of processes that never got an answer stay until this
/// process ends.
Answers ask_mount(const std::filesystem::path& path);

/// Reads a file in the directory .ckfs of the ckfs mount at `mountpoint`. The kernel says that it
/// is such a mount; its daemon may still be any program. So no link is followed, only a regular
/// file of that file system is read, at most 64 MiB of it, for at most five seconds. Errors:
/// InvalidArgument (not a ckfs mount), Io (its daemon is dead, or does not answer in time),
/// NotFound, Corrupt (longer; not a regular file).
Result<std::string> read_of_mount(const std::filesystem::path& mountpoint, const std::string& name);

}  // namespace ckfs
