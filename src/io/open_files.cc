// A checkpoint may have more shards than the process may have descriptors, and opening one for each
// request would cost as much as a small read. So some stay open. Descriptors are shared by
// reference: eviction only forgets, and a thread that still reads from an evicted one finishes in
// peace, where a set with locks per entry would make it wait or fail.
#include "io/open_files.h"

#include <cerrno>
#include <vector>

namespace ckfs {

Tried<Pin> OpenFiles::pin(FileId file, const std::filesystem::path& path, unsigned number,
                          Prepare prepare) {
  CKFS_CHECK(number < kMostDescriptors);
  if (Pin found = find(key(file, number))) return found;
  auto fd = store_.open(path);
  if (!fd && (fd.error() == EMFILE || fd.error() == ENFILE)) {
    close_unpinned();
    fd = store_.open(path);
  }
  if (!fd) return tl::unexpected(fd.error());
  if (prepare != nullptr) prepare(fd->get());
  return keep(key(file, number), *std::move(fd));
}

Pin OpenFiles::keep(Key key, UniqueFd fd) {
  std::vector<Pin> evicted;  // closed after the lock is released
  const MutexLock lock(mutex_);
  if (const auto found = index_.find(key); found != index_.end()) {
    return found->second->pin;  // another thread was faster; ours closes
  }
  auto opened = std::make_shared<Descriptor>();
  opened->fd = std::move(fd);
  opened->serial = next_serial_++;
  entries_.push_front({key, std::move(opened)});
  index_.emplace(key, entries_.begin());
  while (entries_.size() > capacity_) {
    index_.erase(entries_.back().key);
    evicted.push_back(std::move(entries_.back().pin));
    entries_.pop_back();
  }
  return entries_.front().pin;
}

void OpenFiles::drop(FileId file) {
  std::list<Entry> dropped;  // closed after the lock is released
  const MutexLock lock(mutex_);
  for (unsigned number = 0; number < kMostDescriptors; ++number) {
    const auto found = index_.find(key(file, number));
    if (found == index_.end()) continue;
    dropped.splice(dropped.end(), entries_, found->second);
    index_.erase(found);
  }
}

std::size_t OpenFiles::count() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

Pin OpenFiles::find(Key key) {
  const MutexLock lock(mutex_);
  const auto found = index_.find(key);
  if (found == index_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->pin;
}

void OpenFiles::close_unpinned() {
  std::list<Entry> closing;
  const MutexLock lock(mutex_);
  closing.swap(entries_);
  index_.clear();
}

}  // namespace ckfs
