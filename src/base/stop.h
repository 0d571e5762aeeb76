// Work whose result is not wanted any more: a reader was killed, a file closed, a program told to
// end.
//
// A thread that begins work for a caller says so by a StopScope. Long work (decoding, waiting for
// another thread or for memory) asks stop_asked() now and then, at least once for each block, and
// gives up with stopped(). The scope belongs to the thread and is not an argument, because the
// interfaces in between (ByteSource above all) have no other use for it.
#pragma once

#include <stop_token>
#include <string_view>

#include "base/error.h"
#include "base/mutex.h"

namespace ckfs {

/// While it lives, this thread works for the holder of `token`. A scope within another takes its
/// place. An empty token never stops.
class StopScope {
 public:
  explicit StopScope(std::stop_token token);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

  /// The token of this thread's innermost scope: for a StopScope of a thread that helps it.
  static std::stop_token token();

 private:
  friend bool stop_asked() noexcept;
  static bool asked() noexcept;

  const std::stop_token token_;
  const StopScope* const outer_;
};

/// Whether this thread should give up its work.
bool stop_asked() noexcept;

/// The error to give up with: `thing: stopped`.
[[nodiscard]] Failure stopped(std::string_view thing);

/// Wakes the threads that wait for `changed` when this thread is asked to stop. Make it before
/// taking the lock; destroy it after releasing the lock.
class WakeOnStop {
 public:
  WakeOnStop(Mutex& mutex, CondVar& changed)
      : callback_(StopScope::token(), Wake{mutex, changed}) {}

 private:
  struct Wake {
    Mutex& mutex;
    CondVar& changed;
    void operator()() const noexcept {
      // So that the thread is not between its look and its sleep.
      {
        const MutexLock lock(mutex);
      }
      changed.notify_all();
    }
  };
  std::stop_callback<Wake> callback_;
};

}  // namespace ckfs
