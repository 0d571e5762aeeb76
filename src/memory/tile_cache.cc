// An entry is a promise: it stands in the map from the moment that somebody begins to compute, so
// that others wait instead of doing the work twice. A future per entry was the alternative; one
// condition variable is enough, for a waiter looks at its own entry only and tiles are few.
#include "memory/tile_cache.h"

#include <utility>

namespace ckfs {

TileCache::TileCache(BufferPool& pool) {
  pool.set_reclaim([this](std::uint64_t bytes) { reclaim(bytes); });
}

TileCache::~TileCache() = default;

Result<std::shared_ptr<const Tile>> TileCache::wait_locked(std::unique_lock<std::mutex>& lock,
                                                           const TileKey& key) {
  while (true) {
    const auto found = entries_.find(key);
    // Gone: the computation that was waited for has failed.
    if (found == entries_.end()) return std::shared_ptr<const Tile>();
    const std::shared_ptr<Entry> entry = found->second;
    if (entry->ready) {
      ages_.splice(ages_.end(), ages_, entry->age);
      ++hits_;
      return entry->tile;
    }
    changed_.wait(lock);
  }
}

Result<std::shared_ptr<const Tile>> TileCache::find(const TileKey& key) {
  std::unique_lock lock(mutex_);
  return wait_locked(lock, key);
}

Result<std::shared_ptr<const Tile>> TileCache::get(const TileKey& key, const Compute& compute) {
  std::unique_lock lock(mutex_);
  while (true) {
    CKFS_TRY(auto tile, wait_locked(lock, key));
    if (tile) return tile;
    // Another waiter may have begun anew between the failure and this thread's turn.
    const auto [place, inserted] = entries_.try_emplace(key, std::make_shared<Entry>());
    if (inserted) break;
  }
  lock.unlock();
  Result<Tile> made = compute();
  lock.lock();
  if (!made) {
    entries_.erase(key);
    changed_.notify_all();
    return Failure(std::move(made).error());
  }
  const std::shared_ptr<Entry> entry = entries_.at(key);
  entry->tile = std::make_shared<const Tile>(std::move(*made));
  entry->age = ages_.insert(ages_.end(), key);
  entry->ready = true;
  ++computed_;
  changed_.notify_all();
  return entry->tile;
}

void TileCache::drop(const TileKey& key) {
  std::shared_ptr<const Tile> last;  // given back after the lock
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end() || !found->second->ready) return;
  last = found->second->tile;
  ages_.erase(found->second->age);
  entries_.erase(found);
}

void TileCache::clear() {
  std::vector<std::shared_ptr<const Tile>> last;
  const std::lock_guard lock(mutex_);
  for (const TileKey& key : ages_) {
    const auto found = entries_.find(key);
    last.push_back(found->second->tile);
    entries_.erase(found);
  }
  ages_.clear();
}

void TileCache::reclaim(std::uint64_t bytes) {
  std::vector<std::shared_ptr<const Tile>> last;
  std::uint64_t freed = 0;
  const std::lock_guard lock(mutex_);
  for (auto age = ages_.begin(); age != ages_.end() && freed < bytes;) {
    const auto found = entries_.find(*age);
    // One reference is the entry's own: nobody is reading.
    if (found->second->tile.use_count() > 1) {
      ++age;
      continue;
    }
    freed += found->second->tile->buffer.size();
    last.push_back(std::move(found->second->tile));
    entries_.erase(found);
    age = ages_.erase(age);
  }
}

std::uint64_t TileCache::computed() const {
  const std::lock_guard lock(mutex_);
  return computed_;
}

std::uint64_t TileCache::hits() const {
  const std::lock_guard lock(mutex_);
  return hits_;
}

}  // namespace ckfs
