// Whether a remote source gives more bytes a second when it is asked for several ranges at once.
//
// Two kinds of servers look alike from outside. One opens a stream for each open file (object
// stores behind FUSE): a second request in flight gains nothing, and one out of order starts the
// stream over. The other answers each request for itself, after the same delay: there, n requests
// in flight are n times as fast. So it is measured, with bytes that a reader wants anyway. A
// measurement can be wrong: the speed after a decision is watched, and the decision is taken back
// where it is much slower than reading in order was.
//
// Safe for concurrent use by several threads.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/mutex.h"

namespace ckfs {

class Pace {
 public:
  Pace();

  using Seconds = std::chrono::duration<double>;
  using Time = std::chrono::steady_clock::time_point;

  /// Several ranges of a file may be asked for at once. False until measured.
  bool at_once() const;

  /// Whether long reads shall be such that they can be compared: not decided yet, and a byte takes
  /// long enough for it to matter.
  bool wants_comparison() const;
  /// A request of a file goes out in order, by itself; each call is followed by one of
  /// ended_in_order(), with the bytes that came (0: it failed). Those of several files may be on
  /// their way at the same time.
  void began_in_order(Time now);
  void ended_in_order(std::uint64_t bytes, Time now);

  /// How far one comparison can be believed. Where the kernel reads ahead it has a part in both
  /// sides.
  enum class Trust : std::uint8_t { Much, Little };

  /// What a byte took, asked for together with others, and one of the request before them, which
  /// was asked for alone.
  void compared(Seconds at_once, Seconds alone, Trust trust = Trust::Much);
  /// Whether the caller may compare now, while no other file does: then end_comparison() follows,
  /// whatever became of it.
  bool begin_comparison();
  void end_comparison();
  /// What should have been compared was on its way already. It is not tried again for a while, in
  /// which requests are joined as they lie: where the kernel reads far ahead that is so each time.
  void had_nothing_to_compare();

  /// Requests that may be several at once go out; each call is followed by one of ended(), with how
  /// many they were and the bytes that came (0 of both: they failed).
  void began(Time now);
  void ended(std::uint64_t requests, std::uint64_t bytes, Time now);

 private:
  bool knows_order() const CKFS_REQUIRES(mutex_);
  Seconds byte_in_order() const CKFS_REQUIRES(mutex_);
  bool is_open() const CKFS_REQUIRES(mutex_);
  void forget_look() CKFS_REQUIRES(mutex_);

  mutable Mutex mutex_;
  int votes_ CKFS_GUARDED_BY(mutex_) = 0;  // for at once, in a row; below 0: against
  bool at_once_ CKFS_GUARDED_BY(mutex_) = false;
  int taken_back_ CKFS_GUARDED_BY(mutex_) = 0;  // decisions
  /// Of late, in order.
  std::uint64_t order_requests_ CKFS_GUARDED_BY(mutex_) = 0;
  std::uint64_t until_comparison_ CKFS_GUARDED_BY(mutex_) = 0;  // requests in order
  std::uint64_t pause_ CKFS_GUARDED_BY(mutex_);                 // behind one that shows nothing
  bool comparing_ CKFS_GUARDED_BY(mutex_) = false;
  std::uint64_t order_bytes_ CKFS_GUARDED_BY(mutex_) = 0;
  Seconds order_seconds_ CKFS_GUARDED_BY(mutex_){0};  // in which any was waited for
  /// Of all requests in order so far.
  Seconds fastest_ CKFS_GUARDED_BY(mutex_){0};
  Seconds slowest_ CKFS_GUARDED_BY(mutex_){0};
  std::uint64_t in_order_now_ CKFS_GUARDED_BY(mutex_) = 0;
  Time in_order_since_ CKFS_GUARDED_BY(mutex_){};
  /// Since at_once() or the last look at it: bytes that came, the time that they would have taken
  /// in order, and the time in which any were waited for.
  std::uint64_t look_bytes_ CKFS_GUARDED_BY(mutex_) = 0;
  Seconds would_take_ CKFS_GUARDED_BY(mutex_){0};
  Seconds busy_ CKFS_GUARDED_BY(mutex_){0};
  int looks_ CKFS_GUARDED_BY(mutex_) = 0;  // in a row; below 0: that found it slow
  std::uint64_t in_flight_ CKFS_GUARDED_BY(mutex_) = 0;
  Time busy_since_ CKFS_GUARDED_BY(mutex_){};
};

}  // namespace ckfs
