// The record of a running export, which jobs change and which is written to OUT now and then.
//
// Writing takes two fsyncs. No job waits for that: one writes, without a lock, and what others
// change meanwhile is written by the same one afterwards. So the record in OUT may be behind what
// has been done, never ahead of it. Safe for concurrent use by several threads.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "base/mutex.h"
#include "export/export_record.h"

namespace ckfs {

class RecordKeeper {
 public:
  using Write = std::function<Result<void>(const ExportRecord& record)>;
  RecordKeeper(ExportRecord record, Write write)
      : write_(std::move(write)), record_(std::move(record)) {}

  ExportRecord::File file(const std::string& path) const;
  /// What the file is now; the record is not written.
  void set(const std::string& path, const ExportRecord::File& file);
  ExportRecord copy() const;

  /// Writes the record, or leaves that to the job that is writing. Errors: those of `write`.
  Result<void> store();
  /// The same, unless the record was written less than `interval` ago.
  Result<void> store_at_times(std::chrono::milliseconds interval);

 private:
  using Clock = std::chrono::steady_clock;

  const Write write_;
  mutable Mutex mutex_;
  ExportRecord record_ CKFS_GUARDED_BY(mutex_);
  Clock::time_point stored_ CKFS_GUARDED_BY(mutex_);
  bool writing_ CKFS_GUARDED_BY(mutex_) = false;
  bool asked_ CKFS_GUARDED_BY(mutex_) = false;  // to write, since the last copy was taken
};

}  // namespace ckfs
