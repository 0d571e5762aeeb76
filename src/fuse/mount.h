// Mounting: a Filesystem behind a directory, for as long as it is served.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/error.h"
#include "fs/filesystem.h"
#include "fuse/mount_keeper.h"

namespace ckfs {

struct MountOptions {
  std::string source;  // an absolute path; as the keeper has it, and so the next
  /// Other users than the caller can read the mount, as far as the modes of the source files allow
  /// them to read those.
  bool allow_other = false;
  /// FOPEN_DIRECT_IO for all files: the fast way to copy out once (no page cache, no shared mmap).
  bool direct = false;
  /// The first signal ends the mount although files are open.
  bool stop_now = false;
  /// Where the files of the source are (canonical): links may have led anywhere.
  std::vector<std::filesystem::path> source_files;
  /// Directories with files that the daemon itself makes, and reads again (a disk cache).
  std::vector<std::filesystem::path> own_directories = {};
  /// After mounting, only files of paths_covering(), of `own_directories`, and /dev/null can be
  /// opened for reading, where the kernel can enforce that (sandbox.h).
  bool confined = false;
  /// Ends the process, by _exit(2) or a similar call, from any thread: the mount is gone, and a
  /// request has not ended in time.
  std::function<void()> give_up = [] { ::_exit(0); };
};

/// Whether ckfs may mount `source` at `mountpoint`: it must be a directory, not a ckfs mount
/// already (alive or dead), and neither may lie within the other. Gives the canonical mountpoint.
/// serve_mount() checks the same; call it earlier to refuse before a checkpoint is opened. Errors:
/// InvalidArgument, Io.
Result<std::filesystem::path> check_mountpoint(const std::filesystem::path& mountpoint,
                                               const std::filesystem::path& source);

/// Errors: InvalidArgument where a mount at `target` (canonical) would hide one of `files`: the
/// daemon would wait for itself when it opens it.
Result<void> check_hides_none(const std::filesystem::path& target,
                              std::span<const std::filesystem::path> files);

/// Mounts at the keeper's target, and serves the mount until it is unmounted and no longer used.
/// Calls `ready` once the mount answers, on a thread of its own; not if it was unmounted before.
/// SIGTERM detaches the mount; so do SIGINT and SIGHUP, unless they are ignored. Files that are
/// open or mapped then are still served, because a loaded model may lie in them. A second signal
/// ends that (with stop_now the first). The first signal also ends it where another mount covers
/// the path, or the mount cannot be removed: then it is left in place, and no longer served. When
/// the mount ends and a request does not end within a second and a half, the mount is given up:
/// readers get errors, and the process ends. Threads that wait in the kernel for the source may
/// keep the process until that answers. A mount that the keeper adopted is neither made nor removed
/// here: a signal ends its service at once. At most one call at a time, from the main thread, whose
/// signal handlers and mask it sets while it runs. Requires: one thread, if `confined`. Errors:
/// InvalidArgument (as check_mountpoint() and check_hides_none()), Io (no /dev/fuse, no permission,
/// no thread to serve it with; the message names the remedy), OutOfMemory, and if `confined` those
/// of confine_reading().
Result<void> serve_mount(Filesystem& filesystem, MountKeeper& keeper, const MountOptions& options,
                         const std::function<void()>& ready);

enum class Unmounted : std::uint8_t {
  Ended,     // it was not in use
  Detached,  // detached; its daemon, if it lives, serves the open files, and then ends
};

enum class FilesInUse : std::uint8_t {
  LiveOn,
  Fail,  // reads that wait for the source fail, too
};

/// Unmounts `mountpoint`, also one whose daemon is dead or does not answer. Errors: InvalidArgument
/// (not a ckfs mount), NotFound (its directory is not there), Io (no permission; with
/// FilesInUse::Fail no way to abort its connection, and then nothing was done).
Result<Unmounted> unmount(const std::filesystem::path& mountpoint, FilesInUse files);

}  // namespace ckfs
