// Computed bytes that several requests share: tiles of gathered tensors, pieces ahead of readers,
// rendered text. Each is computed once however many threads ask (single-flight), as long as there
// is memory to keep it, and all live within one BufferPool: what nobody reads and was used least
// recently goes first. What was computed ahead of a reader who has not come yet goes only where
// somebody waits for memory: it does not make room for more of its kind. A tile (Kind::Tile) that
// took longer to compute than a disk takes to give it back goes into the store, where there is one,
// when it makes room for others, and comes back from there; not one that its reader is past, nor
// what is dropped while nobody reads (clear()).
//
// Safe for concurrent use by several threads. compute() runs without locks; it may ask the same
// cache only for what needs nothing of it in turn (Kind::Kept).
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
  /// `pool` must outlive it; what is short there is asked of it from now on. `store` may be
  /// nullptr.
  explicit TileCache(BufferPool& pool, std::shared_ptr<TileStore> store = nullptr);
  ~TileCache();
  TileCache(const TileCache&) = delete;
  TileCache& operator=(const TileCache&) = delete;

  using Compute = std::function<Result<Tile>()>;

  /// The tile, computed by this thread, which reads it, or another, or had from the store. An error
  /// is that of this thread's own compute(), OutOfMemory where an entry finds no memory, or Stopped
  /// (this thread was asked to stop while it waited): who
  /// waited for a computation that failed computes anew. What compute() throws becomes an error:
  /// bad_alloc OutOfMemory, any other std::exception Internal. Waits for memory of Tier::Tile
  /// itself where the store has the tile.
  Result<std::shared_ptr<const Tile>> get(const TileKey& key, const Compute& compute);

  /// Takes tile `number` of several that are computed together; each at most once.
  using Ready = std::function<std::shared_ptr<const Tile>(std::size_t number, Tile tile)>;
  /// Gets the numbers of the keys that are its own to compute, in order.
  using ComputeSeveral =
      std::function<Result<void>(std::span<const std::size_t> numbers, const Ready& ready)>;

  /// Computes those of `keys` that nobody has begun, together and ahead of their readers: one read
  /// for all. Waits for no other computation: one that has ended may have been read and forgotten
  /// by the time that this thread wakes. Each tile is there for others as soon as it is ready. What
  /// compute() leaves out is as if it had never been begun: who waited for it computes it himself.
  /// Errors: those of compute(); what it throws, and OutOfMemory,
  /// as in get().
  Result<void> compute(std::span<const TileKey> keys, const ComputeSeveral& compute);

  /// The tile if it is ready or being computed (then this waits); nullptr if nobody has begun, or
  /// if what was waited for has failed, or has gone again where memory is short, or this thread is
  /// asked to stop.
  std::shared_ptr<const Tile> find(const TileKey& key);

  /// Forgets a tile that will not be asked for again. One that is being computed stays.
  void drop(const TileKey& key) noexcept;

  /// Its reader is past the tile: it is the first to go where memory is short, before those that
  /// were computed ahead and have not been asked for yet. One that is being computed stays as it
  /// is.
  void retire(const TileKey& key) noexcept;

  /// Forgets all ready tiles: a source file has changed, or nobody has read for a while.
  void clear() noexcept;

  /// The tile was given to its reader past the cache: unread() does not count it.
  void given(const TileKey& key) noexcept;

  /// Computations so far that gave a tile, looks for one that found it there or under way, and
  /// tiles that were forgotten before anybody had asked for them.
  std::uint64_t computed() const;
  std::uint64_t hits() const;
  std::uint64_t unread() const;

 private:
  struct Entry {
    std::shared_ptr<const Tile> tile;  // nullptr: being computed
    bool awaited = false;              // computed ahead, and not asked for yet
    std::list<TileKey>::iterator age;  // when ready: place in ages_
    bool asked = false;
    bool dear = false;  // to be stored before it goes
  };
  class Computation;
  using Entries = std::map<TileKey, Entry>;

  std::shared_ptr<const Tile> wait(MutexLock& lock, const TileKey& key) CKFS_REQUIRES(mutex_);
  std::optional<Tile> restored(const TileKey& key, BufferPool::Demand demand);
  void put_into_store(const TileKey& key, const Tile& tile) noexcept CKFS_EXCLUDES(mutex_);
  void remove(Entries::iterator entry) noexcept CKFS_REQUIRES(mutex_);
  void reclaim(std::uint64_t bytes, BufferPool::Demand demand) noexcept;

  BufferPool& pool_;
  const std::shared_ptr<TileStore> store_;
  mutable Mutex mutex_;  // taken before the pool's, never held while reading
  CondVar changed_;
  Entries entries_ CKFS_GUARDED_BY(mutex_);
  // Least recently used first; exactly the ready entries.
  std::list<TileKey> ages_ CKFS_GUARDED_BY(mutex_);
  std::uint64_t computed_ CKFS_GUARDED_BY(mutex_) = 0;
  std::uint64_t hits_ CKFS_GUARDED_BY(mutex_) = 0;
  std::uint64_t unread_ CKFS_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckfs
