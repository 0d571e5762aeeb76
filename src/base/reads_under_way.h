// Reads that are under way, and whether their readers still wait for them.
//
// The kernel does not say so. It interrupts a request only where a thread waits for the answer
// itself, and then for every signal, also one that the program handles: that program would see a
// failed read, or SIGBUS. For pages that are read ahead, as most are, it interrupts nothing. But
// each request names the thread that made it. So during a long read the daemon checks again and
// again whether that thread is dead or dying. An error for its page reaches no other reader: one
// that waits for the same page asks for it again.
//
// `ckfs serve` does the same with the sockets of its clients, by their numbers.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <optional>
#include <stop_token>
#include <sys/types.h>
#include <thread>

#include "base/mutex.h"

namespace ckfs {

/// Safe for concurrent use by several threads.
class ReadsUnderWay {
 public:
  /// Whether no reader waits for that thread's request any more. `direct`: past the page cache,
  /// where another thread of its process may take the answer. Called by a thread of this object.
  using IsGone = std::function<bool(pid_t thread, bool direct)>;

  /// Reads that last longer than `look` are checked at that interval. Without a thread none is
  /// checked.
  explicit ReadsUnderWay(IsGone is_gone,
                         std::chrono::milliseconds look = std::chrono::milliseconds(250));
  ReadsUnderWay(const ReadsUnderWay&) = delete;
  ReadsUnderWay& operator=(const ReadsUnderWay&) = delete;
  /// Requires: no Read is left.
  ~ReadsUnderWay();

  /// Asks all reads to stop, also those that begin later. Takes no memory.
  void stop_all();

  /// A read that is under way while the object lives.
  class Read {
   public:
    /// If `reads` is nullptr, it never stops.
    Read(ReadsUnderWay* reads, pid_t thread, bool direct);
    ~Read();
    Read(const Read&) = delete;
    Read& operator=(const Read&) = delete;
    std::stop_token token() const { return stop_.get_token(); }

   private:
    friend class ReadsUnderWay;
    ReadsUnderWay* const reads_;
    const pid_t thread_;
    const bool direct_;
    const std::chrono::steady_clock::time_point since_;
    std::stop_source stop_;
    std::list<Read*> place_;  // its node in reads_, or taken back from there
  };

 private:
  struct Look {
    std::stop_source stop;
    pid_t thread = 0;
    bool direct = false;
  };
  void run();
  void look_at(const std::list<Look>& lasting) const;

  const IsGone is_gone_;
  const std::chrono::milliseconds look_;
  Mutex mutex_;
  CondVar changed_;
  std::list<Read*> under_way_ CKFS_GUARDED_BY(mutex_);
  bool idle_ CKFS_GUARDED_BY(mutex_) = false;  // the thread sleeps until a read begins
  bool all_ CKFS_GUARDED_BY(mutex_) = false;   // are to stop
  bool ending_ CKFS_GUARDED_BY(mutex_) = false;
  std::optional<std::thread> thread_;
};

}  // namespace ckfs
