// A TileStore in memory, with faults. Safe for concurrent use by several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <new>
#include <utility>

#include "base/mutex.h"
#include "memory/tile_store.h"

namespace ckfs {

class MemoryTileStore final : public TileStore {
 public:
  bool put(const TileKey& key, std::span<const std::byte> bytes,
           std::span<const FileId> files) override {
    const MutexLock lock(mutex_);
    ++puts;
    if (full) return false;
    if (throws) throw std::bad_alloc();
    kept_[key] = {{bytes.begin(), bytes.end()}, {files.begin(), files.end()}};
    return true;
  }

  std::optional<std::size_t> size(const TileKey& key) const override {
    const MutexLock lock(mutex_);
    const auto found = kept_.find(key);
    return found == kept_.end() ? std::nullopt : std::optional(found->second.first.size());
  }

  std::optional<std::vector<FileId>> get(const TileKey& key, std::span<std::byte> out) override {
    const MutexLock lock(mutex_);
    if (loses) return std::nullopt;
    std::ranges::copy(kept_.at(key).first, out.begin());
    return kept_.at(key).second;
  }

  std::atomic<int> puts = 0;
  std::atomic<bool> full = false, throws = false, loses = false;

 private:
  mutable Mutex mutex_;
  std::map<TileKey, std::pair<std::vector<std::byte>, std::vector<FileId>>> kept_
      CKFS_GUARDED_BY(mutex_);
};

}  // namespace ckfs
