// Confines a daemon that parses untrusted files. If such a file ever takes it over, it can still
// compute and read its source, and nothing else. Three steps, each irrevocable and for all threads
// that are started later: privileges and writing are given up before the first file is opened,
// reading when the source's files are known.
//
// All of it is a second wall. Where the kernel does not have a part, the daemon runs without it,
// and the caller logs what `Confinement` says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

#include "base/error.h"

namespace ckfs {

/// A user that a root daemon becomes.
struct DaemonUser {
  std::string name;
  uid_t user = 0;
  gid_t group = 0;
};
/// Errors: InvalidArgument (no user of that name).
Result<DaemonUser> find_user(const std::string& name);
/// Changes to the user and its groups, irrevocably. Requires: root, one thread. Errors: Io.
Result<void> become(const DaemonUser& user);

/// Gives up every capability but CAP_DAC_READ_SEARCH, by which root reads a source of another user;
/// files are opened as long as the mount lives. Programs started from here gain no privileges.
/// Requires: one thread. Errors: Io.
Result<void> drop_privileges();

/// What a step achieved. `landlock` and `seccomp` are false where the kernel or the machine has
/// none (or the program is built with a sanitizer, whose runtime needs the forbidden calls).
struct Confinement {
  bool landlock = false;
  bool seccomp = false;
};

/// Whether files may be renamed, too: within a directory of those that are writable, as far as
/// Landlock is there to see to it.
enum class Renaming : bool { No, Yes };
/// Which sockets a confined daemon has beside that of the system log.
enum class Sockets : std::uint8_t {
  None,
  Accepted,  // those that come through a socket that listens already
};

/// From here on: Landlock, as far as the kernel's version can: only regular files beneath
/// `writable` (and /dev/null) can be made, changed or removed; no file can be executed; no TCP
/// socket can be connected or bound; no process outside can be sent a signal. seccomp allows only
/// the system calls that a daemon needs: it denies exec, fork, mount, sockets other than local
/// ones, and new io_uring rings (it does not see requests to existing rings). Requires: one thread;
/// no_new_privs, as drop_privileges() sets it; existing rings can do no harm (io/uring.h). Errors:
/// NotFound, Io (a directory of `writable` cannot be opened; the kernel has these and refuses
/// them).
Result<Confinement> confine_writing(std::span<const std::filesystem::path> writable,
                                    Sockets sockets = Sockets::None,
                                    Renaming renaming = Renaming::No);

/// From here on, only files at and beneath `readable` (and /dev/null) can be opened for reading.
/// Open files stay readable. Landlock alone: `seccomp` stays false. Requires: one thread, and
/// no_new_privs. Errors: NotFound, Io (one of `readable` cannot be opened; as above).
Result<Confinement> confine_reading(std::span<const std::filesystem::path> readable);

/// Which paths cover the source files in `files` (canonical), for confine_reading(): few, because
/// to name each of 100,000 files costs an operation of the source. A remote file system is covered
/// whole, because the kernel may give its files new identities at any time. Otherwise the
/// directories of many files are covered, and a few files each alone.
std::vector<std::filesystem::path> paths_covering(std::vector<std::filesystem::path> files);

}  // namespace ckfs
