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

#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "base/stop.h"

namespace ckfs {
namespace {

using Clock = std::chrono::steady_clock;

/// What a disk needs for `bytes` bytes, about: 500 MB/s.
std::chrono::nanoseconds disk_time(std::size_t bytes) {
  return std::chrono::nanoseconds(2 * static_cast<std::int64_t>(bytes));
}

}  // namespace

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
    since_ = Clock::now();
    return begun_;
  }

  /// `awaited`: it was computed ahead; else the computing thread reads it.
  std::shared_ptr<const Tile> finish(Tile tile, bool awaited) noexcept {
    const bool costly = cache_.store_ != nullptr && key_.kind == TileKey::Kind::Tile &&
                        Clock::now() - since_ > disk_time(tile.size);
    auto finished = end(std::move(tile), awaited, costly);
    const MutexLock lock(cache_.mutex_);
    ++cache_.computed_;
    return finished;
  }

  /// The same for one that the store had.
  std::shared_ptr<const Tile> restore(Tile tile, bool awaited) noexcept {
    return end(std::move(tile), awaited, true);
  }

 private:
  std::shared_ptr<const Tile> end(Tile tile, bool awaited, bool costly) noexcept {
    *tile_ = std::move(tile);
    const MutexLock lock(cache_.mutex_);
    Entry& entry = cache_.entries_.find(key_)->second;
    entry.asked = entry.asked || !awaited;
    Ages& ages = cache_.ages_of(key_);
    ages.splice(ages.end(), age_);
    entry.age = std::prev(ages.end());
    entry.tile = tile_;
    entry.awaited = awaited;
    entry.costly = costly;
    begun_ = false;
    cache_.changed_.notify_all();
    return tile_;
  }

  TileCache& cache_;
  const TileKey key_;
  Ages age_;  // its node of ages_of(key), made before it is needed
  const std::shared_ptr<Tile> tile_;
  bool begun_ = false;  // and not yet finished
  Clock::time_point since_;
};

TileCache::TileCache(BufferPool& pool, std::shared_ptr<TileStore> store)
    : pool_(pool),
      store_(std::move(store)),
      reclaimer_(pool_.on_shortage(
          Tier::Tile,
          [this](std::uint64_t bytes, BufferPool::Demand demand) { reclaim(bytes, demand); })) {}

TileCache::~TileCache() = default;

std::shared_ptr<const Tile> TileCache::wait(MutexLock& lock, const TileKey& key) {
  while (true) {
    const auto found = entries_.find(key);
    // Gone: the computation that was waited for has failed.
    if (found == entries_.end()) return nullptr;
    Entry& entry = found->second;
    entry.asked = true;
    if (entry.tile != nullptr) {
      Ages& ages = ages_of(key);
      ages.splice(ages.end(), ages, entry.age);
      entry.awaited = false;
      ++hits_;
      return entry.tile;
    }
    if (stop_asked()) return nullptr;
    changed_.wait(lock);
  }
}

std::shared_ptr<const Tile> TileCache::find(const TileKey& key) {
  const WakeOnStop wake(mutex_, changed_);
  MutexLock lock(mutex_);
  return wait(lock, key);
}

Result<std::shared_ptr<const Tile>> TileCache::get(const TileKey& key, const Compute& compute) {
  return or_failure("computing a tile", [&]() -> Result<std::shared_ptr<const Tile>> {
    const WakeOnStop wake(mutex_, changed_);
    {
      MutexLock lock(mutex_);
      if (auto tile = wait(lock, key)) return tile;
    }
    Computation computation(*this, key);
    // Another thread may have begun since.
    while (!computation.begin()) {
      {
        MutexLock lock(mutex_);
        if (auto tile = wait(lock, key)) return tile;
      }
      if (stop_asked()) return stopped("a tile");
    }
    if (auto stored = restored(key, BufferPool::Demand::Waits)) {
      return computation.restore(*std::move(stored), false);
    }
    CKFS_TRY(Tile tile, compute());
    return computation.finish(std::move(tile), false);
  });
}

Result<void> TileCache::compute(std::span<const TileKey> keys, const ComputeSeveral& compute) {
  return or_failure("computing a tile", [&]() -> Result<void> {
    std::vector<std::unique_ptr<Computation>> computations(keys.size());  // of those that are ours
    std::vector<std::size_t> numbers;
    numbers.reserve(keys.size());
    for (std::size_t k = 0; k < keys.size(); ++k) {
      auto computation = std::make_unique<Computation>(*this, keys[k]);
      if (!computation->begin()) continue;
      if (auto stored = restored(keys[k], BufferPool::Demand::Spare)) {
        computation->restore(*std::move(stored), true);
        continue;
      }
      computations[k] = std::move(computation);
      numbers.push_back(k);
    }
    if (numbers.empty()) return {};
    return compute(numbers, [&](std::size_t number, Tile tile) {
      return computations[number]->finish(std::move(tile), true);
    });
  });
}

/// The tile from the store. Without memory for it, get() computes it, and compute() may.
std::optional<Tile> TileCache::restored(const TileKey& key, BufferPool::Demand demand) {
  if (store_ == nullptr || key.kind != TileKey::Kind::Tile) return std::nullopt;
  const std::optional<std::size_t> size = store_->size(key);
  if (!size) return std::nullopt;
  std::optional<Buffer> buffer;
  if (demand == BufferPool::Demand::Spare) {
    buffer = pool_.try_acquire(Tier::Tile, *size);
  } else if (auto acquired = pool_.acquire(Tier::Tile, *size)) {
    buffer = *std::move(acquired);
  }
  if (!buffer) return std::nullopt;
  auto files = store_->get(key, buffer->span());
  if (!files) return std::nullopt;
  return Tile{*std::move(buffer), *size, *std::move(files)};
}

/// A tile that cannot be stored is computed again.
void TileCache::put_into_store(const TileKey& key, const Tile& tile) noexcept {
  try {
    if (!store_->size(key)) (void)store_->put(key, tile.span(), tile.files);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
    // The same.
  }
}

/// Gives the tile's buffer back at once, under the lock: the pool's lock comes after it, and
/// nothing here allocates.
void TileCache::remove(Entries::iterator entry) noexcept {
  if (!entry->second.asked) ++unread_;
  ages_of(entry->first).erase(entry->second.age);
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
  Ages& ages = ages_of(key);
  ages.splice(ages.begin(), ages, found->second.age);
  found->second.awaited = false;
  found->second.costly = false;
}

void TileCache::clear() noexcept {
  const MutexLock lock(mutex_);
  for (Ages* ages : {&ages_, &maxima_}) {
    while (!ages->empty()) remove(entries_.find(ages->front()));
  }
}

void TileCache::reclaim(std::uint64_t bytes, BufferPool::Demand demand) noexcept {
  std::uint64_t freed = 0;
  MutexLock lock(mutex_);
  for (Ages* ages : {&ages_, &maxima_}) {
    if (ages == &maxima_) {
      if (demand == BufferPool::Demand::Spare) return;
      // The waiting thread asks again as others give back, so none go before they can help.
      std::uint64_t maxima = 0;
      for (const TileKey& key : maxima_)
        maxima += entries_.find(key)->second.tile->buffer.counted();
      if (freed + maxima < bytes) return;
    }
    for (auto age = ages->begin(); age != ages->end() && freed < bytes;) {
      const auto found = entries_.find(*age++);
      // One reference is the entry's own: no thread reads the tile.
      if (found->second.tile.use_count() > 1) continue;
      if (found->second.awaited && demand == BufferPool::Demand::Spare) continue;
      if (found->second.costly) {
        found->second.costly = false;  // tried once
        const TileKey key = found->first;
        std::shared_ptr<const Tile> tile = found->second.tile;
        lock.unlock();
        put_into_store(key, *tile);
        tile.reset();
        lock.lock();
        age = ages->begin();  // other threads may have changed them
        continue;
      }
      freed += found->second.tile->buffer.counted();
      remove(found);
    }
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
