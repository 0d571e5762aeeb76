// Computed bytes that several requests share: tiles of gathered tensors, chunks ahead of readers,
// rendered text. Each is computed once however many threads ask (single-flight), and all live
// within one BufferPool: what nobody reads and was used least recently goes first.
//
// Safe for concurrent use by several threads. compute() runs without locks; it must not ask the
// same cache for anything.
#pragma once

#include <compare>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/byte_source.h"
#include "base/error.h"
#include "memory/buffer_pool.h"

namespace ckfs {

/// What a tile holds.
struct TileKey {
  enum class Kind : std::uint8_t { Chunk, Tile, Literal };
  std::uint64_t file = 0;  // inode of the layout
  Kind kind = Kind::Chunk;
  std::uint32_t part = 0;   // tensor or literal number; 0 for a chunk
  std::uint64_t index = 0;  // which tile or chunk

  auto operator<=>(const TileKey&) const = default;
};

/// Computed bytes and the source files they were made of.
struct Tile {
  Buffer buffer;
  std::size_t size = 0;  // of the buffer's bytes, from the front
  std::vector<FileId> files;

  std::span<const std::byte> span() const { return {buffer.data(), size}; }
};

class TileCache {
 public:
  explicit TileCache(BufferPool& pool);
  ~TileCache();

  using Compute = std::function<Result<Tile>()>;

  /// The tile, computed by this thread or another. An error goes to all who waited for this
  /// computation; the next one to ask computes anew.
  Result<std::shared_ptr<const Tile>> get(const TileKey& key, const Compute& compute);

  /// The tile if it is ready or being computed (then this waits); nullptr if nobody has begun.
  Result<std::shared_ptr<const Tile>> find(const TileKey& key);

  /// Forgets a tile that will not be asked for again. One that is being computed stays.
  void drop(const TileKey& key);

  /// Forgets all ready tiles: a source file has changed.
  void clear();

  /// Computations so far, and finds of a tile that another request had computed.
  std::uint64_t computed() const;
  std::uint64_t hits() const;

 private:
  struct Entry {
    bool ready = false;
    std::shared_ptr<const Tile> tile;  // when ready
    std::list<TileKey>::iterator age;  // when ready: place in ages_
  };
  Result<std::shared_ptr<const Tile>> wait_locked(std::unique_lock<std::mutex>& lock,
                                                  const TileKey& key);
  void reclaim(std::uint64_t bytes);

  mutable std::mutex mutex_;  // guards all below; taken before the pool's, never held while reading
  std::condition_variable changed_;
  std::map<TileKey, std::shared_ptr<Entry>> entries_;
  std::list<TileKey> ages_;  // least recently used first; exactly the ready entries
  std::uint64_t computed_ = 0;
  std::uint64_t hits_ = 0;
};

}  // namespace ckfs
