// Computed bytes that several requests share: tiles of gathered tensors, pieces ahead of readers,
// rendered text. Each is computed once however many threads ask (single-flight), as long as there
// is memory to keep it. All live within one BufferPool. Eviction takes the least recently used
// entry that no thread reads; maxima (Kind::Maximum) after all others, and only for a thread that
// waits and gets enough by it, because each is a few bytes that cost a pass over whole tensors. An
// entry that was computed ahead and not asked for yet is
// evicted only when a thread waits for memory, never for more work ahead. When a tile (Kind::Tile)
// is evicted that took longer to compute than a disk takes to read it, it goes into the store, if
// there is one, and comes back from there. Retired tiles (retire()) and tiles dropped by clear()
// are not stored.
//
// Safe for concurrent use by several threads. compute() runs without locks. It may ask the same
// cache only for entries that need no other entry (Kind::Kept, Maximum, Scales).
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/byte_source.h"
#include "base/error.h"
#include "base/mutex.h"
#include "memory/buffer_pool.h"
#include "memory/tile_key.h"
#include "memory/tile_store.h"

namespace ckfs {

/// Computed bytes and the source files they were made of.
struct Tile {
  Buffer buffer;
  std::size_t size = 0;
  std::vector<FileId> files;
  std::size_t begin = 0;  // of the bytes in the buffer, whose margin they may reach into

  std::span<const std::byte> span() const { return {buffer.data() + begin, size}; }
};

class TileCache {
 public:
  /// `pool` must outlive it, and asks it for memory when short, as long as it lives. `store` may be
  /// nullptr.
  explicit TileCache(BufferPool& pool, std::shared_ptr<TileStore> store = nullptr);
  ~TileCache();
  TileCache(const TileCache&) = delete;
  TileCache& operator=(const TileCache&) = delete;

  using Compute = std::function<Result<Tile>()>;

  /// The tile, computed by this thread or another, or read from the store. A thread that waited for
  /// a computation that failed computes the tile itself. Errors: those of this thread's own
  /// compute(); OutOfMemory (no memory for an entry); Stopped (this thread was asked to stop while
  /// it waited). An exception of compute() becomes an error: bad_alloc OutOfMemory, any other
  /// std::exception Internal. Waits for memory of Tier::Tile itself where the store has the tile.
  Result<std::shared_ptr<const Tile>> get(const TileKey& key, const Compute& compute);

  /// Takes tile `number` of several that are computed together; each at most once.
  using Ready = std::function<std::shared_ptr<const Tile>(std::size_t number, Tile tile)>;
  /// Gets the numbers of the keys that are its own to compute, in order.
  using ComputeSeveral =
      std::function<Result<void>(std::span<const std::size_t> numbers, const Ready& ready)>;

  /// Computes those of `keys` that no thread has begun, together and ahead of their readers: one
  /// read for all. Waits for no other computation, because its tile may have been read and evicted
  /// by the time that this thread wakes. Each tile is there for others as soon as it is ready. Keys
  /// that compute() does not provide are released; their waiters compute them. Errors: those of
  /// compute(); exceptions and OutOfMemory as in get().
  Result<void> compute(std::span<const TileKey> keys, const ComputeSeveral& compute);

  /// The tile if it is ready or being computed (then this waits). nullptr: no thread has begun it,
  /// the computation failed, the tile was evicted before this thread woke, or this thread is asked
  /// to stop.
  std::shared_ptr<const Tile> find(const TileKey& key);

  /// Forgets a tile that will not be asked for again. One that is being computed stays.
  void drop(const TileKey& key) noexcept;

  /// The reader is past the tile: it is evicted first, before tiles that were computed ahead and
  /// have not been asked for yet. Has no effect on a tile that is being computed.
  void retire(const TileKey& key) noexcept;

  /// Forgets all ready tiles: a source file has changed, or no reader was active for a while.
  void clear() noexcept;

  /// The reader got the tile's bytes without asking the cache: unread() does not count it.
  void given(const TileKey& key) noexcept;

  /// Tiles computed so far, look-ups that found a tile ready or under way, and tiles evicted
  /// unread.
  std::uint64_t computed() const;
  std::uint64_t hits() const;
  std::uint64_t unread() const;

 private:
  using Ages = std::list<TileKey>;  // least recently used first
  struct Entry {
    std::shared_ptr<const Tile> tile;  // nullptr: being computed
    bool awaited = false;              // computed ahead, and not asked for yet
    Ages::iterator age;                // when ready: place in ages_of(key)
    bool asked = false;
    bool costly = false;  // store it before it is evicted
  };
  class Computation;
  using Entries = std::map<TileKey, Entry>;

  std::shared_ptr<const Tile> wait(MutexLock& lock, const TileKey& key) CKFS_REQUIRES(mutex_);
  std::optional<Tile> restored(const TileKey& key, BufferPool::Demand demand);
  void put_into_store(const TileKey& key, const Tile& tile) noexcept CKFS_EXCLUDES(mutex_);
  void remove(Entries::iterator entry) noexcept CKFS_REQUIRES(mutex_);
  void reclaim(std::uint64_t bytes, BufferPool::Demand demand) noexcept;
  Ages& ages_of(const TileKey& key) CKFS_REQUIRES(mutex_) {
    return key.kind == TileKey::Kind::Maximum ? maxima_ : ages_;
  }

  BufferPool& pool_;
  const std::shared_ptr<TileStore> store_;
  mutable Mutex mutex_;  // taken before the pool's, never held while reading
  CondVar changed_;
  Entries entries_ CKFS_GUARDED_BY(mutex_);
  // Together exactly the ready entries.
  Ages ages_ CKFS_GUARDED_BY(mutex_);
  Ages maxima_ CKFS_GUARDED_BY(mutex_);
  std::uint64_t computed_ CKFS_GUARDED_BY(mutex_) = 0;
  std::uint64_t hits_ CKFS_GUARDED_BY(mutex_) = 0;
  std::uint64_t unread_ CKFS_GUARDED_BY(mutex_) = 0;
  BufferPool::Reclaimer reclaimer_;  // last: its function uses the rest
};

}  // namespace ckfs
