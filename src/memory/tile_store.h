// Where evicted tiles go that are expensive to recompute.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/byte_source.h"
#include "memory/tile_key.h"

namespace ckfs {

/// Safe for concurrent use by several threads.
class TileStore {
 public:
  virtual ~TileStore() = default;

  /// Keeps a tile's bytes, for as long as there is room, and the files that they were made of.
  /// False: it cannot.
  virtual bool put(const TileKey& key, std::span<const std::byte> bytes,
                   std::span<const FileId> files) = 0;

  /// How many bytes were put for the key; nullopt: they are not there.
  virtual std::optional<std::size_t> size(const TileKey& key) const = 0;

  /// Fills `out`, of size(key) bytes, and gives the files; nullopt: they are not there any more.
  virtual std::optional<std::vector<FileId>> get(const TileKey& key, std::span<std::byte> out) = 0;
};

}  // namespace ckfs
