// What a daemon that parses strangers' files may still do, if one of them should ever take it over:
// compute, and read its source. In three steps, each for good and for all threads that are started
// later: privileges and writing go before the first file is opened, reading when it is known which
// files there are.
//
// All of it is a second wall. Where the kernel lacks a part, the daemon runs without that part, and
// the caller logs what `Confinement` says.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

#include "base/error.h"

namespace ckfs {

/// A user that a daemon of root's becomes.
struct DaemonUser {
  std::string name;
  uid_t user = 0;
  gid_t group = 0;
};
/// Errors: InvalidArgument (there is none of that name).
Result<DaemonUser> find_user(const std::string& name);
/// With the groups that he has, and no way back. Requires: root, one thread. Errors: Io.
Result<void> become(const DaemonUser& user);

/// Gives up every capability but CAP_DAC_READ_SEARCH, by which root reads a source that belongs to
/// somebody else; files are opened as long as the mount lives. Programs started from here gain
/// nothing, whatever they are. Requires: one thread. Errors: Io.
Result<void> drop_privileges();

/// What a step could do. `landlock` and `seccomp` are false where the kernel, or the machine, has
/// none (or the program is built with a sanitizer, whose runtime does what is forbidden here).
struct Confinement {
  bool landlock = false;
  bool seccomp = false;
};

/// From here on: no file is made, changed or removed but regular ones beneath `writable` (and
/// /dev/null), none is executed, no TCP socket is connected or bound, no process outside gets a
/// signal (Landlock, as much of this as the kernel's version has); and the system calls that a
/// daemon needs are all there are: no program is started, no process is made, nothing is mounted,
/// no socket but local ones, no ring of io_uring (seccomp, which does not see what is asked of
/// rings that were made before). Requires: one thread; no_new_privs, as drop_privileges() leaves
/// it; rings can do nothing that matters (io/uring.h). Errors: NotFound, Io (a directory of
/// `writable` cannot be opened; a kernel that has these refuses them).
Result<Confinement> confine_writing(std::span<const std::filesystem::path> writable);

/// From here on, no file is opened to be read but those at and beneath `readable` (and /dev/null).
/// Files that are open stay readable. Landlock alone: `seccomp` stays false. Requires: one thread,
/// and no_new_privs. Errors: NotFound, Io (one of `readable` cannot be opened; as above).
Result<Confinement> confine_reading(std::span<const std::filesystem::path> readable);

/// Which paths cover the source files in `files` (canonical), for confine_reading(): few, because
/// to name each of 100,000 files costs an operation of the source. A file system that is far away
/// is covered whole, for its files may be others to the kernel whenever it asks again; else where
/// there are many files, their directories are covered, and where there are few, each file alone.
std::vector<std::filesystem::path> paths_covering(std::vector<std::filesystem::path> files);

}  // namespace ckfs
