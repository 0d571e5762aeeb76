// What a service manager wants to know of a daemon that it has started.
#pragma once

#include <string_view>

namespace ckfs::cli {

/// Sends `state` ("READY=1", "STOPPING=1") where systemd listens (sd_notify(3)); else does nothing.
void notify_manager(std::string_view state);

/// Whether stderr is a stream of systemd's journal, which takes a line's priority from "<N>" in
/// front of it (sd-daemon(3)).
bool stderr_is_journal();

}  // namespace ckfs::cli
