// A thread where the system has one left. Every thread of ckfs but the one that watches over a
// mount (fuse/session.cc) makes something faster and is not needed. So a limit on threads
// (pids.max, RLIMIT_NPROC, no memory for a stack) must not end a working mount.
#pragma once

#include <functional>
#include <optional>
#include <thread>

namespace ckfs {

/// Starts a thread that runs `work`, or gives nullopt where the system refuses one; the first
/// refusal in the life of the process is reported in the log. Requires: `work` does not throw.
std::optional<std::thread> start_thread(std::function<void()> work);

}  // namespace ckfs
