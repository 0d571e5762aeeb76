// A bounded set of open descriptors. It drops the least recently used one first.
//
// Safe for concurrent use by several threads. No lock is held while a file is opened or closed.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <list>
#include <memory>
#include <unordered_map>

#include "base/byte_source.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "io/source_store.h"

namespace ckfs {

/// A descriptor in use. Its holder may read from it, also after it left the set; the last holder
/// closes it.
struct Descriptor {
  UniqueFd fd;
  std::uint64_t serial = 0;  // of this opening; never used again
  /// What was opened has been found to be the file that was meant. Set by the caller of pin().
  mutable std::atomic<bool> compared = false;
};
using Pin = std::shared_ptr<const Descriptor>;

class OpenFiles {
 public:
  /// Keeps at most `capacity` (at least 1) descriptors that are not pinned; pinned ones add to
  /// that. `store` opens them and must outlive this.
  OpenFiles(std::size_t capacity, OpenStore& store)
      : capacity_(capacity == 0 ? 1 : capacity), store_(store) {}

  /// A file may have several descriptors, by number; most have one, 0.
  static constexpr unsigned kMostDescriptors = 4;

  /// Called with a descriptor once it is open, before the first read from it.
  using Prepare = void (*)(int fd);

  /// Descriptor `number` of `file`, opened at `path` if it is not there; the error is an errno.
  /// When none are left, all unpinned ones are closed before it gives up with EMFILE or ENFILE.
  Tried<Pin> pin(FileId file, const std::filesystem::path& path, unsigned number = 0,
                 Prepare prepare = nullptr);
  /// Forgets the descriptors of `file`, if any.
  void drop(FileId file);

  std::size_t count() const;

 private:
  using Key = std::uint64_t;
  struct Entry {
    Key key;
    Pin pin;
  };

  static Key key(FileId file, unsigned number) { return Key{file} * kMostDescriptors + number; }
  Pin keep(Key key, UniqueFd fd);
  Pin find(Key key);
  void close_unpinned();

  const std::size_t capacity_;
  OpenStore& store_;
  mutable Mutex mutex_;
  std::list<Entry> entries_ CKFS_GUARDED_BY(mutex_);  // the most recently used first
  std::unordered_map<Key, std::list<Entry>::iterator> index_ CKFS_GUARDED_BY(mutex_);
  std::uint64_t next_serial_ CKFS_GUARDED_BY(mutex_) = 1;
};

}  // namespace ckfs
