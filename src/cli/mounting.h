// Mounting, for the verbs that do: `mount`, and `run` for as long as a command runs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "base/error.h"
#include "cli/cli.h"

namespace ckfs::cli {

struct MountCommand {
  MountWords words;
  std::string source;
  std::string mountpoint;
  std::string log;                 // where it goes: MountFacts::log
  std::optional<unsigned> device;  // a mounted /dev/fuse: --fuse-fd
  bool foreground = false;
  bool verbose = false;
  /// The daemon ends with this process, whatever ends that: as after a SIGTERM, when the mount is
  /// no longer used. This process keeps the descriptors that it was given.
  bool with_parent = false;
  pid_t parent = 0;              // where with_parent
  std::vector<int> inherited{};  // the caller's descriptors, which the daemon does not keep
};

/// Adds the options that say how to mount. The log level is that of a daemon.
void add_mount_options(CLI::App& verb, const std::shared_ptr<MountCommand>& command);

/// Mounts, and returns when the mount answers; in the foreground when it has ended. Requires: this
/// process has one thread.
Result<void> mount_checkpoint(MountCommand command);

}  // namespace ckfs::cli
