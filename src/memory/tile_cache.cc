// A map of entries, each being computed or ready, under one lock. Waiting for a computation means
// waiting for its entry to change: without single-flight, eight readers that come to a new tile at
// once would compute it eight times, each with a buffer of its own. A future per entry was the
// alternative; one condition variable is enough, for a waiter looks at its own entry only and tiles
// are few.
//
// An entry that is being computed must end, whatever happens: its readers wait for nothing else. So
// all that can fail (memory for the map, the list, the tile itself) comes before the entry is seen
// or within the guarded computation, and what follows does not throw.
#include "memory/tile_cache.h"

#include <exception>
#include <new>
#include <utility>

namespace ckfs {

/// An entry that is being computed: removed at the end of the scope unless it is finished.
class TileCache::Computation {
 public:
  Computation(TileCache& cache, const TileKey& key)
      : cache_(cache), key_(key), age_{key}, tile_(std::make_shared<Tile>()) {}
  Computation(const Computation&) = delete;
  Computation& operator=(const Computation&) = delete;
  ~Computation() {
    if (!begun_) return;
    const MutexLock lock(cache_.mutex_);
    cache_.entries_.erase(key_);
    cache_.changed_.notify_all();
  }

  /// False: another thread has begun, or the tile is ready.
  bool begin() {
    const MutexLock lock(cache_.mutex_);
    begun_ = cache_.entries_.try_emplace(key_).second;
    return begun_;
  }

  /// `awaited`: it was computed ahead; else who computes it reads it.
  std::shared_ptr<const Tile> finish(Tile tile, bool awaited) noexcept {
    *tile_ = std::move(tile);
    const MutexLock lock(cache_.mutex_);
    Entry& entry = cache_.entries_.find(key_)->second;
    entry.asked = entry.asked || !awaited;
    cache_.ages_.splice(cache_.ages_.end(), age_);
    entry.age = std::prev(cache_.ages_.end());
    entry.tile = tile_;
    entry.awaited = awaited;
    ++cache_.computed_;
    begun_ = false;
    cache_.changed_.notify_all();
    return tile_;
  }

 private:
  TileCache& cache_;
  const TileKey key_;
  std::list<TileKey> age_;  // its node of ages_, made before it is needed
  const std::shared_ptr<Tile> tile_;
  bool begun_ = false;  // and not yet finished
};

TileCache::TileCache(BufferPool& pool) : pool_(pool) {
  pool_.set_reclaim(Tier::Tile, [this](std::uint64_t bytes, BufferPool::Demand demand) {
    reclaim(bytes, demand);
  });
}

TileCache::~TileCache() {
  pool_.set_reclaim(Tier::Tile, {});
}

std::shared_ptr<const Tile> TileCache::wait(MutexLock& lock, const TileKey& key) {
  while (true) {
    const auto found = entries_.find(key);
    // Gone: the computation that was waited for has failed.
    if (found == entries_.end()) return nullptr;
    Entry& entry = found->second;
    entry.asked = true;
    if (entry.tile != nullptr) {
      ages_.splice(ages_.end(), ages_, entry.age);
      entry.awaited = false;
      ++hits_;
      return entry.tile;
    }
    changed_.wait(lock);
  }
}

std::shared_ptr<const Tile> TileCache::find(const TileKey& key) {
  MutexLock lock(mutex_);
  return wait(lock, key);
}

namespace {

/// What `compute` throws becomes an error.
template <typename Compute>
auto guarded(const Compute& compute) -> decltype(compute()) {
  try {
    return compute();
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::OutOfMemory, "memory: the system gives no more (computing a tile)");
  } catch (const std::exception& error) {
    return fail(ErrorCode::Internal, "computing a tile: {}", error.what());
  }
}

}  // namespace

Result<std::shared_ptr<const Tile>> TileCache::get(const TileKey& key, const Compute& compute) {
  return guarded([&]() -> Result<std::shared_ptr<const Tile>> {
    {
      MutexLock lock(mutex_);
      if (auto tile = wait(lock, key)) return tile;
    }
    Computation computation(*this, key);
    // Another thread may have begun since.
    while (!computation.begin()) {
      MutexLock lock(mutex_);
      if (auto tile = wait(lock, key)) return tile;
    }
    CKFS_TRY(Tile tile, compute());
    return computation.finish(std::move(tile), false);
  });
}

Result<void> TileCache::compute(std::span<const TileKey> keys, const ComputeSeveral& compute) {
  return guarded([&]() -> Result<void> {
    std::vector<std::unique_ptr<Computation>> computations(keys.size());  // of those that are ours
    std::vector<std::size_t> numbers;
    numbers.reserve(keys.size());
    for (std::size_t k = 0; k < keys.size(); ++k) {
      auto computation = std::make_unique<Computation>(*this, keys[k]);
      if (!computation->begin()) continue;
      computations[k] = std::move(computation);
      numbers.push_back(k);
    }
    if (numbers.empty()) return {};
    return compute(numbers, [&](std::size_t number, Tile tile) {
      return computations[number]->finish(std::move(tile), true);
    });
  });
}

/// The tile's buffer goes back at once, under the lock: the pool's comes after it, and there is no
/// memory needed that could be lacking.
void TileCache::remove(Entries::iterator entry) noexcept {
  if (!entry->second.asked) ++unread_;
  ages_.erase(entry->second.age);
  entries_.erase(entry);
}

void TileCache::drop(const TileKey& key) noexcept {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(key);
  if (found != entries_.end() && found->second.tile != nullptr) remove(found);
}

void TileCache::given(const TileKey& key) noexcept {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(key);
  if (found != entries_.end()) found->second.asked = true;
}

void TileCache::retire(const TileKey& key) noexcept {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.tile == nullptr) return;
  ages_.splice(ages_.begin(), ages_, found->second.age);
  found->second.awaited = false;
}

void TileCache::clear() noexcept {
  const MutexLock lock(mutex_);
  while (!ages_.empty()) remove(entries_.find(ages_.front()));
}

void TileCache::reclaim(std::uint64_t bytes, BufferPool::Demand demand) noexcept {
  std::uint64_t freed = 0;
  const MutexLock lock(mutex_);
  for (auto age = ages_.begin(); age != ages_.end() && freed < bytes;) {
    const auto found = entries_.find(*age++);
    // One reference is the entry's own: nobody is reading.
    if (found->second.tile.use_count() > 1) continue;
    if (found->second.awaited && demand == BufferPool::Demand::Spare) continue;
    freed += found->second.tile->buffer.size();
    remove(found);
  }
}

std::uint64_t TileCache::computed() const {
  const MutexLock lock(mutex_);
  return computed_;
}

std::uint64_t TileCache::hits() const {
  const MutexLock lock(mutex_);
  return hits_;
}

std::uint64_t TileCache::unread() const {
  const MutexLock lock(mutex_);
  return unread_;
}

}  // namespace ckfs
