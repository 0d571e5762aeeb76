// Where log lines go: standard error, a file, or the system log.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "cli/cli.h"

namespace ckfs::cli {

/// Sends the log to `log_file`, or to stderr where it is empty. Errors: Io, InvalidArgument (what
/// is there is not a file that may be written).
Result<void> start_log(const CommonOptions& options);

/// The log of a daemon, which has no stderr that somebody reads: `log_file`; else the system log;
/// else, where no system log listens, ckfs.log in $XDG_STATE_HOME/ckfs, in /var/log (root) or in
/// ~/.local/state/ckfs. Gives a line for the user where the log is not what the manual names first.
/// Errors: as start_log(), for `log_file` only.
Result<std::optional<std::string>> start_daemon_log(const CommonOptions& options);

}  // namespace ckfs::cli
