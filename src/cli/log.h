// Where log lines go: standard error, a file, or the system log.
#pragma once

#include <memory>
#include <optional>
#include <spdlog/sinks/sink.h>
#include <string>

#include "base/error.h"
#include "cli/cli.h"

namespace ckfs::cli {

/// Sends the log to `log_file`, or to stderr where it is empty, with priorities where that is
/// systemd's journal. Errors: NotFound, Io (also a directory), InvalidArgument (the path is of a
/// FIFO, a socket or the like, or of another user's link).
Result<void> start_log(const CommonOptions& options);

struct DaemonLog {
  /// Where it goes: a file, "syslog"; empty: nowhere.
  std::string place;
  /// A line for the user, where the log is not what the manual names first.
  std::optional<std::string> note;
  bool is_lost = false;  // there is no log: the note is a warning
  /// Warnings go to stderr, too, until the level of this is off.
  std::shared_ptr<spdlog::sinks::sink> terminal;
};

/// The log of a daemon, whose stderr has no reader: `log_file`; else the system
/// log; else, where no system log listens, ckfs.log in $XDG_STATE_HOME/ckfs, in /var/log (root) or
/// in ~/.local/state/ckfs; else nowhere, as `note` says. Errors: as start_log(), for `log_file`
/// only.
Result<DaemonLog> start_daemon_log(const CommonOptions& options);

/// From now on every line of the log begins with "`mountpoint`: ", because many mounts may share a
/// log. Lines for the user of a mount in the background (DaemonLog::terminal) stay as they are.
void name_mount_in_log(const std::string& mountpoint);

}  // namespace ckfs::cli
