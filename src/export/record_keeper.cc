#include "export/record_keeper.h"

#include <utility>

namespace ckfs {

ExportRecord::File RecordKeeper::file(const std::string& path) const {
  const MutexLock lock(mutex_);
  const auto at = record_.files.find(path);
  return at == record_.files.end() ? ExportRecord::File{} : at->second;
}

void RecordKeeper::set(const std::string& path, const ExportRecord::File& file) {
  const MutexLock lock(mutex_);
  record_.files[path] = file;
}

ExportRecord RecordKeeper::copy() const {
  const MutexLock lock(mutex_);
  return record_;
}

Result<void> RecordKeeper::store() {
  MutexLock lock(mutex_);
  asked_ = true;
  if (writing_) return {};
  writing_ = true;
  Result<void> written;
  while (asked_ && written) {
    asked_ = false;
    stored_ = Clock::now();
    const ExportRecord record = record_;
    lock.unlock();
    written = write_(record);
    lock.lock();
  }
  writing_ = false;
  return written;
}

Result<void> RecordKeeper::store_at_times(std::chrono::milliseconds interval) {
  {
    const MutexLock lock(mutex_);
    if (Clock::now() - stored_ < interval) return {};
  }
  return store();
}

}  // namespace ckfs
