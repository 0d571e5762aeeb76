// The arrays of an item: from their metadata and the places of their chunks to storages and boxes
// of a catalog.
//
// An array is one storage, its chunks one after another in row-major order, and the tensor is a box
// of it: twice as many for each dimension whose last chunk reaches beyond the array's end and is
// not the only one, 256 at most. So a chunk costs its extent, whatever the grid.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "catalog/catalog.h"
#include "format/zarr_read.h"
#include "source/orbax/ocdbt_database.h"

namespace ckfs {

/// One array, while its chunks are found.
class ZarrArray {
 public:
  /// `name`: for messages. Errors: Unsupported (more bytes or boxes than there may be). A form that
  /// no reader here decodes is not an error but an obstacle.
  static Result<ZarrArray> create(std::string name, zarr::Metadata metadata);

  const std::string& name() const { return name_; }
  const zarr::Metadata& metadata() const { return metadata_; }

  /// Chunks that meet the array, whether they are stored or not. Each will cost an extent.
  std::size_t cells() const;

  /// Boxes that its tensor will have at most.
  std::size_t boxes() const { return std::size_t{1} << partial_; }

  /// Notes where the chunk (or shard) is that a key names. One beyond the grid is ignored.
  /// Requires: `index` has a number for each dimension; before finish(). Errors: Corrupt (a size
  /// that no such chunk has, a shard without room for its index, one in memory whose index is
  /// damaged or whose inner chunks lie beyond it or have more bytes than it), Unsupported (more
  /// chunks than are numbered, or than a shard may have).
  Result<void> add_chunk(CatalogBuilder& builder, std::span<const std::int64_t> index,
                         const StoredValue& value);

  /// Adds storage and tensor under `name`, once. Chunks that were not found show the fill value; or
  /// the array has an obstacle, if `why_whole` says why no chunk may be missing, or the fill
  /// value's bits are not known. The reader of a shard's file finds chunks that are absent in it.
  /// Errors: Unsupported (more chunks than are numbered).
  Result<TensorId> finish(CatalogBuilder& builder, std::string_view name,
                          std::string_view why_whole);

  std::uint64_t chunks() const { return found_; }
  /// Chunks that finish() made the fill value. Of an array that cannot be shown 0.
  std::uint64_t filled() const { return filled_; }
  /// Stored bytes of the chunks that were found.
  std::uint64_t stored_bytes() const { return stored_; }

 private:
  ZarrArray(std::string name, zarr::Metadata metadata)
      : name_(std::move(name)), metadata_(std::move(metadata)) {}

  Result<void> make_grid();
  std::string find_obstacle() const;
  std::string unknown_fill() const;
  ChunkArrayId chunk_array(CatalogBuilder& builder);
  std::string chunk_text(std::span<const std::int64_t> index) const;
  Result<void> add_shard(CatalogBuilder& builder, std::span<const std::int64_t> index,
                         const StoredValue& value);
  /// Calls `take` with (number in the index, cell) of each chunk of a shard that is in the array.
  /// Errors: those of `take`.
  template <typename Take>
  Result<void> for_each_inner(std::span<const std::int64_t> index, Take take) const;
  std::vector<StorageBox> make_boxes(StorageId storage) const;
  bool is_row_major(std::span<const StorageBox> boxes) const;

  std::string name_;
  zarr::Metadata metadata_;
  std::string obstacle_;  // why its values cannot be shown; empty: they can
  DType dtype_ = DType::U8;
  std::uint64_t nbytes_ = 0;           // of an inner chunk, decoded
  std::vector<std::int64_t> outer_;    // chunks (or shards) along each dimension
  std::vector<std::int64_t> cells_;    // inner chunks along each dimension, that meet the array
  std::size_t partial_ = 0;            // dimensions with whole chunks and one that is not
  std::vector<Extent> extents_;        // by cell
  std::optional<ChunkArrayId> array_;  // once there is a chunk of it
  std::uint64_t found_ = 0;            // chunks and shards
  std::uint64_t stored_ = 0;           // their bytes
  std::uint64_t filled_ = 0;           // chunks that are not stored
};

}  // namespace ckfs
