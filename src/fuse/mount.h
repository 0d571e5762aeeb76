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
  /// Others than the caller get what they could read of the source files themselves, as far as the
  /// modes of these say.
  bool allow_other = false;
  /// FOPEN_DIRECT_IO for all files: the fast way to copy out once (no page cache, no shared mmap).
  bool direct = false;
  /// The first signal ends the mount although files are open.
  bool stop_now = false;
  /// Where the files of the source are (canonical): links may have led anywhere.
  std::vector<std::filesystem::path> source_files;
  /// Once it is mounted, no file beside those of paths_covering() can be opened to be read (but
  /// /dev/null), where the kernel can forbid that (sandbox.h).
  bool confined = false;
  /// Ends the process, by _exit(2) or the like: the mount is gone, and what is under way has not
  /// ended in time. By any thread.
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

/// Mounts where `keeper` does, calls `ready` (on a thread of its own; not where it is unmounted
/// before) once the mount answers, and serves until it is unmounted and nobody uses it any more.
/// SIGTERM, or SIGINT or SIGHUP where they are not ignored, takes it out of sight; files that are
/// open or mapped then are served on, for a model that is loaded may still lie in them. A second
/// signal ends that (the first, with stop_now), and so does the first where the mount is not on top
/// of its path any more, or cannot be taken away: it is left as it is, and no longer served. Where
/// the mount ends, by a signal or because nobody uses it any more, and a request that is under way
/// does not end within a second and a half, it is given up: readers get errors, and so does the
/// process end. Threads that wait in the kernel for the source may keep it until that answers. At
/// most one call at a time, from the main thread: the signals' dispositions and its mask are taken
/// over while it runs. Requires: one thread, if `confined`. Errors: InvalidArgument (as
/// check_mountpoint() and check_hides_none()), Io (no /dev/fuse, no permission, no thread to serve
/// it with; the message has what to do), OutOfMemory, and if `confined` those of confine_reading().
Result<void> serve_mount(Filesystem& filesystem, MountKeeper& keeper, const MountOptions& options,
                         const std::function<void()>& ready);

enum class Unmounted : std::uint8_t {
  Ended,     // nobody used it
  Detached,  // out of sight; its daemon, if it lives, serves the files that are open, and then ends
};

enum class FilesInUse : std::uint8_t {
  LiveOn,
  Fail,  // also those that wait for a source which does not answer
};

/// Unmounts `mountpoint`, also one whose daemon is dead or does not answer. Errors: InvalidArgument
/// (not a ckfs mount), NotFound (its directory is not there), Io (no permission; with
/// FilesInUse::Fail no way to abort its connection, and then nothing was done).
Result<Unmounted> unmount(const std::filesystem::path& mountpoint, FilesInUse files);

}  // namespace ckfs
