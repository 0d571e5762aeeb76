// The sandbox around a daemon, `ckfs mount` or `ckfs serve`, before it opens a source.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include <ckfs/checkpoint.h>

#include "base/error.h"
#include "sandbox/sandbox.h"

namespace ckfs::cli {

struct Walls {
  bool confined = false;     // Landlock and seccomp were tried
  std::string_view lacking;  // what of these this system does not have; empty: it has both
};

/// The checks of the parsers are the first wall, this is the second. It is built before the parsers
/// see the first byte. Where privileges are kept, which the log says, nothing else is tried:
/// without no_new_privs the kernel refuses it. `subject`: of log lines. `own`:
/// directories in which the daemon makes files of its own. Requires: one thread.
/// Errors: those of confine_writing().
Result<Walls> raise_walls(const std::string& subject, const OpenOptions& options, bool confined,
                          Sockets sockets, std::span<const std::filesystem::path> own = {});

/// Logs what this system does not have of the walls.
void report_walls(const std::string& subject, const Walls& walls);

}  // namespace ckfs::cli
