// The arrays of an Orbax item, and where their chunks are: from the keys of its database, or from
// the files of the arrays' directories.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/name_hash.h"
#include "catalog/catalog.h"
#include "format/orbax_read.h"
#include "io/source_files.h"
#include "source/file_table.h"
#include "source/orbax/ocdbt_database.h"
#include "source/orbax/zarr_arrays.h"
#include "source/repeated_headers.h"
#include "source/source_tree.h"

namespace ckfs {

/// Of one opening; not for concurrent use. The arguments of the constructor must outlive it.
class OrbaxArrays {
 public:
  /// `item`: the item's directory in the tree, with its '/'; empty: the tree is the item.
  OrbaxArrays(const SourceTree& tree, SourceFiles& files, const FileTable& table,
              RepeatedHeaders& repeated, std::string item)
      : tree_(tree), files_(files), table_(table), repeated_(repeated), item_(std::move(item)) {}

  /// Finds all arrays by the names of their metadata, and parses these. What `flags` leave open,
  /// or all where they are nullptr, the files decide. `item_bytes`: the stored size of the item,
  /// which bounds what may be absent. Errors: NotFound (a database that `flags` say is there),
  /// Unsupported (no array; more chunks, boxes or bytes of names than there may be), Corrupt, Io,
  /// Stale.
  Result<void> find(const orbax::ItemFlags* flags, std::uint64_t item_bytes);

  /// Notes in each array where its chunks are. Once, after find(). Errors: those of
  /// ZarrArray::add_chunk(), Corrupt.
  Result<void> find_chunks(CatalogBuilder& builder);

  /// By key.
  std::span<const ZarrArray> all() const { return arrays_; }
  /// nullptr: there is none.
  ZarrArray* of_name(std::string_view name);
  bool has(std::string_view name) const { return by_name_.contains(name); }
  bool in_database() const { return database_.has_value(); }

  /// Whether arrays would show other values without the file of `key`, and without an error.
  bool are_in(std::string_view key) const;

 private:
  /// An array's metadata, to be parsed.
  struct Found {
    std::string name;
    zarr::Version version = zarr::Version::V3;
    StoredValue value;
  };

  Result<void> open_database(const orbax::ItemFlags* flags);
  Result<void> for_each_key(const TakeEntry& take) const;
  Result<void> take_name(std::string_view name);
  Result<void> check_apart(std::span<const Found> found) const;
  Result<std::optional<ZarrArray>> read_array(const Found& found);
  /// The array that `key` has a chunk of, and the chunk's `index`; nullptr: no array's.
  Result<ZarrArray*> array_of_chunk(std::string_view key, std::vector<std::int64_t>& index);

  const SourceTree& tree_;
  SourceFiles& files_;
  const FileTable& table_;
  RepeatedHeaders& repeated_;
  const std::string item_;
  std::optional<OcdbtDatabase> database_;  // nullopt: keys are files
  std::uint64_t keys_ = 0;
  std::vector<ZarrArray> arrays_;
  std::unordered_map<std::string_view, std::size_t, NameHash> by_name_;  // in arrays_
  std::size_t longest_name_ = 0;
  std::uint64_t name_bytes_ = 0;
  std::uint64_t sought_ = 0;   // bytes of names, by array_of_chunk()
  ZarrArray* last_ = nullptr;  // of array_of_chunk()
};

}  // namespace ckfs
