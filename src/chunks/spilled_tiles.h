// Tiles in the spill, beside decoded blocks: cut into blocks like chunks, under numbers that no
// chunk has. Blocks are overwritten one by one, the least recently used first; a tile with a
// missing block is lost. Of more than some thousand tiles the older half is dropped.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "chunks/spill.h"
#include "memory/tile_store.h"

namespace ckfs {

class SpilledTiles final : public TileStore {
 public:
  explicit SpilledTiles(std::shared_ptr<Spill> spill) : spill_(std::move(spill)) {}

  /// Also false for a tile of more than half of the spill's limit: it would push out all others,
  /// and at last itself.
  bool put(const TileKey& key, std::span<const std::byte> bytes,
           std::span<const FileId> files) override;
  std::optional<std::size_t> size(const TileKey& key) const override;
  std::optional<std::vector<FileId>> get(const TileKey& key, std::span<std::byte> out) override;

 private:
  struct Kept {
    std::uint32_t number = 0;  // in the spill
    std::size_t size = 0;
    std::vector<FileId> files;
  };
  /// Makes room for one more: forgets tiles that are lost and, if that is not enough, the older
  /// half.
  void make_room() CKFS_REQUIRES(mutex_);

  /// The most tiles to remember; all blocks of a remembered tile may have been overwritten.
  static constexpr std::size_t kMostKept = 4096;

  const std::shared_ptr<Spill> spill_;
  mutable Mutex mutex_;  // never held while reading or writing
  std::map<TileKey, Kept> kept_ CKFS_GUARDED_BY(mutex_);
  std::uint32_t next_ CKFS_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckfs
