// Reads one remote file in order: one request at a time, each through the descriptor that fits
// (file_order.h); unless its source turns out to answer each request for itself (pace.h), and then
// no longer.
//
// The thread that has the turn carries out all accesses that wait, not only its own: by offset, and
// those that lie one behind another as one access. Threads come in no order (a kernel's read-ahead
// sends eight requests at once), and one after another each would wait for a whole answer of the
// source.
//
// Safe for concurrent use by several threads.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <sys/uio.h>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "io/file_order.h"
#include "io/file_system.h"

namespace ckfs {

/// Bytes [offset, offset + size) of a file, scattered over `parts`.
struct FileAccess {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;  // the sum over parts; more than 0
  std::span<const iovec> parts;

  ByteRange range() const { return {offset, offset + size}; }
};

class OrderedFile {
 public:
  using Clock = std::chrono::steady_clock;
  /// A test has a clock of its own.
  explicit OrderedFile(std::function<Clock::time_point()> now = Clock::now)
      : now_(std::move(now)) {}

  /// The way to the file, for one call. The call's thread may use it for accesses of others, too.
  struct Way {
    /// The open descriptor of a number (FileOrder).
    std::function<Result<int>(unsigned descriptor)> fd;
    /// Carries out all accesses at once.
    std::function<Result<void>(unsigned descriptor, std::span<const FileAccess> accesses)> read;
    /// So many bytes were read on the way to an access. May be empty.
    std::function<void(std::uint64_t bytes)> passed = {};
  };

  /// How long accesses shall be: normally `usual`. A source is measured with several accesses that
  /// lie one behind another. Where it keeps pages these are long, for the kernel has read ahead a
  /// part of them. Elsewhere one request is cut into enough of them.
  static std::uint64_t longest_access(const FileSystem& file_system, std::uint64_t usual);

  /// Carries out all of `accesses`, in any order. Each becomes a part of an access of at most
  /// `longest` bytes, or one of its own. Another thread may have carried them out: the caller must
  /// check afterwards whether the file is still the same. Errors: those of `way`.
  Result<void> read(std::span<const FileAccess> accesses, std::uint64_t longest,
                    FileSystem& file_system, const Way& way);

  /// Callers that wait for their turn now.
  std::uint64_t waiting() const { return turn_.waiting(); }

 private:
  struct Caller;
  struct Pending;
  class Turn;

  Result<bool> read_passed(const FileAccess& access, const Way& way);
  std::vector<Pending> pending();
  bool begins_stream(const FileAccess& access);
  std::uint64_t arrivals();
  bool next_arrival(std::uint64_t seen, Clock::time_point until);
  void serve(const Caller& me, std::uint64_t longest, FileSystem& file_system, const Way& way);
  std::size_t serve_next(const Caller& me, std::span<const Pending> rest, std::uint64_t longest,
                         FileSystem& file_system, const Way& way);

  const std::function<Clock::time_point()> now_;
  FairMutex turn_;  // held while the source is asked
  Mutex mutex_;     // taken after turn_, and never held while reading
  CondVar arrived_;
  std::uint64_t arrivals_ CKFS_GUARDED_BY(mutex_) = 0;  // callers that were ever in callers_
  FileOrder order_ CKFS_GUARDED_BY(mutex_);
  /// The caller that has the turn, and those that wait for it. The one that has the turn uses the
  /// things that they point to.
  std::vector<Caller*> callers_ CKFS_GUARDED_BY(mutex_);
};

}  // namespace ckfs
