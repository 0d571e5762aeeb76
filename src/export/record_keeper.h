// The record of a running export. Jobs change it, and now and then one of them writes it to OUT.
//
// Writing takes two fsyncs, and jobs do not wait for that: one job writes without a lock, and
// writes again if others have changed the record since. So the record in OUT may be behind the
// work, never ahead of it. Safe for concurrent use by several threads.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/mutex.h"

namespace ckfs {

/// For store_at_times(): a view of small files would otherwise spend its time on the record.
inline constexpr std::chrono::milliseconds kRecordInterval{500};

template <typename Record>
class RecordKeeper {
 public:
  using Write = std::function<Result<void>(const Record& record)>;
  using Clock = std::chrono::steady_clock;
  RecordKeeper(Record record, Write write, std::function<Clock::time_point()> now = Clock::now)
      : write_(std::move(write)), now_(std::move(now)), record_(std::move(record)) {}

  /// Changes the record in memory. `change` must not use the keeper.
  template <typename Change>
  void change(Change&& change) {
    const MutexLock lock(mutex_);
    change(record_);
  }
  /// The result of `look` on the record. `look` must not use the keeper.
  template <typename Look>
  auto look(Look&& look) const {
    const MutexLock lock(mutex_);
    return look(record_);
  }
  Record copy() const {
    return look([](const Record& record) { return record; });
  }

  /// Writes the record, or leaves that to the job that is writing it. Errors: those of `write`;
  /// OutOfMemory.
  Result<void> store() {
    MutexLock lock(mutex_);
    asked_ = true;
    if (writing_) return {};
    writing_ = true;
    Result<void> written;
    while (asked_ && written) {
      asked_ = false;
      stored_ = now_();
      lock.unlock();
      written = or_out_of_memory([&] { return write_(copy()); });
      lock.lock();
    }
    writing_ = false;
    return written;
  }

  /// Calls store(), unless the record was written less than `interval` ago.
  Result<void> store_at_times(std::chrono::milliseconds interval) {
    {
      const MutexLock lock(mutex_);
      if (now_() - stored_ < interval) return {};
    }
    return store();
  }

 private:
  const Write write_;
  const std::function<Clock::time_point()> now_;
  mutable Mutex mutex_;
  Record record_ CKFS_GUARDED_BY(mutex_);
  Clock::time_point stored_ CKFS_GUARDED_BY(mutex_);
  bool writing_ CKFS_GUARDED_BY(mutex_) = false;
  bool asked_ CKFS_GUARDED_BY(mutex_) = false;  // to write, since the last copy was taken
};

}  // namespace ckfs
