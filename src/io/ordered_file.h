// Reads one remote file in order: one request at a time, first come first served, each through the
// descriptor that fits (file_order.h); unless its source turns out to answer each request for
// itself (pace.h), and then no longer.
//
// Safe for concurrent use by several threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/mutex.h"
#include "io/coalesce.h"
#include "io/file_order.h"
#include "io/file_system.h"

namespace ckfs {

class OrderedFile {
 public:
  using Clock = std::chrono::steady_clock;
  /// A test has a clock of its own.
  explicit OrderedFile(std::function<Clock::time_point()> now = Clock::now)
      : now_(std::move(now)) {}

  /// How the file is reached, for one call.
  struct Way {
    /// The open descriptor of a number (FileOrder).
    std::function<Result<int>(unsigned descriptor)> fd;
    /// Carries out accesses [first, first + count) at once.
    std::function<Result<void>(unsigned descriptor, std::size_t first, std::size_t count)> read;
  };

  /// How long accesses shall be, `usual` normally. A source is measured by several that lie one
  /// behind another. Where it keeps pages these are long, for the kernel has read ahead a part of
  /// them; elsewhere one request is cut to be enough.
  static std::uint64_t longest_access(const FileSystem& file_system, std::uint64_t usual);

  /// All of `accesses`, which are of this file and in ascending order.
  Result<void> read(std::span<const PlannedAccess> accesses, FileSystem& file_system,
                    const Way& way);

 private:
  Result<bool> read_passed(const PlannedAccess& access, std::size_t index, const Way& way);
  Result<std::size_t> read_next(std::span<const PlannedAccess> rest, std::size_t index,
                                FileSystem& file_system, const Way& way);

  const std::function<Clock::time_point()> now_;
  FairMutex turn_;  // held while the source is asked
  Mutex mutex_;     // taken after turn_, and never held while reading
  FileOrder order_ CKFS_GUARDED_BY(mutex_);
};

}  // namespace ckfs
