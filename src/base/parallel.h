// The one loop over many things by many threads. Most of its uses are at mount, where the work
// waits for a source more than it computes: so it begins with few threads, and adds more while
// those mostly wait. A caller whose tasks only compute gives `few` and `most` one value.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <thread>

#include "base/error.h"

namespace ckfs {

struct Parallel {
  /// Threads from the start, the calling one among them. At least 1.
  std::size_t few = 4;
  /// Threads at most, no fewer than `few`: how many tasks a slow source may have to answer at once.
  std::size_t most = 64;
  /// Starts a thread, or gives nullopt where the system has none left. Empty: start_thread(). Tests
  /// set it to refuse threads.
  std::function<std::optional<std::thread>(std::function<void()>)> start = {};
};

using Task = std::function<Result<void>(std::size_t)>;

/// Runs make(0) to make(count - 1), several at once, and returns when all have ended. All threads
/// are asked to stop when the calling one is (base/stop.h). Of several
/// failures the one with the lowest number is given, whichever came first; tasks after a failed one
/// may not be run. If threads cannot be started, fewer do the work: the calling thread alone is
/// enough. A task's std::bad_alloc becomes OutOfMemory; one before any task began is thrown.
/// Requires: `make` may be called by several threads, and throws nothing else.
Result<void> run_parallel(std::size_t count, const Task& make, const Parallel& how = {});

/// The same with take(0), take(1) ... called in this order by the calling thread, each after its
/// make(); a failure of take(i) counts as one of make(i). At most two results for each thread are
/// made and not yet taken, so their memory is bounded.
Result<void> run_in_order(std::size_t count, const Task& make, const Task& take,
                          const Parallel& how = {});

/// Whether threads that used `cpu` in the time `wall` mostly waited: they left more than half of
/// the CPUs that they could have had, so that more of them will not get in each other's way.
/// Requires: more than 0 threads and CPUs.
bool mostly_waited(std::chrono::nanoseconds cpu, std::chrono::nanoseconds wall, std::size_t threads,
                   std::size_t cpus);

}  // namespace ckfs
