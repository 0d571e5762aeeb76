// What a service manager wants to know of a daemon that it has started.
#pragma once

#include <string_view>

#include "base/unique_fd.h"

namespace ckfs::cli {

/// The way to systemd, where it listens (sd_notify(3)). Opened before the daemon is confined: then
/// Landlock keeps it from sockets of abstract names, and another user's rights may be less.
class ServiceManager {
 public:
  ServiceManager();
  /// Sends `state` ("READY=1", "STOPPING=1"). Does nothing where systemd does not listen.
  void send(std::string_view state) const;

 private:
  UniqueFd socket_;
};

/// Whether stderr is a stream of systemd's journal, which takes a line's priority from "<N>" in
/// front of it (sd-daemon(3)).
bool stderr_is_journal();

}  // namespace ckfs::cli
