// The same work on many files, by a few threads: at mount it is waiting, not computing.
#pragma once

#include <cstddef>
#include <functional>

#include "base/error.h"

namespace ckfs {

/// Runs task(0) to task(count - 1), several at once, and returns when all have ended. Of several
/// failures the one with the lowest number is given, whichever came first; tasks after a failed one
/// may not be run. Requires: `task` may be called by several threads.
Result<void> run_parallel(std::size_t count, const std::function<Result<void>(std::size_t)>& task);

}  // namespace ckfs
