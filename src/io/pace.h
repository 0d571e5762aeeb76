// Whether a remote source gives more bytes a second when it is asked for several ranges at once.
//
// Two kinds of servers look alike from outside. One opens a stream for each open file (object
// stores behind FUSE): a second request in flight gains nothing, and one out of order starts the
// stream over. The other answers each request for itself, after the same delay: there, n requests
// in flight are n times as fast. So it is measured, with bytes that somebody wants anyway.
//
// Safe for concurrent use by several threads.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/mutex.h"

namespace ckfs {

class Pace {
 public:
  /// Several ranges of a file may be asked for at once. False until measured.
  bool at_once() const;

  /// Whether the next long read shall be used to compare.
  bool wants_comparison() const;

  /// How far one comparison can be believed. Where the kernel reads ahead it has a part in both
  /// sides.
  enum class Trust : std::uint8_t { Much, Little };

  /// The seconds that a byte took, asked for in order and asked for together with others.
  void compared(std::chrono::duration<double> in_order, std::chrono::duration<double> at_once,
                Trust trust = Trust::Much);

 private:
  mutable Mutex mutex_;
  int votes_ CKFS_GUARDED_BY(mutex_) = 0;  // for at once, in a row; below 0: against
  bool at_once_ CKFS_GUARDED_BY(mutex_) = false;
};

}  // namespace ckfs
