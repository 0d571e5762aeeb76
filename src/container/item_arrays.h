// The arrays of an Orbax item: the model's tensors and the leaf `step`, by name, each in chunks.
// Costs 16 bytes an array; grids are shared by arrays of one kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "container/array_chunks.h"
#include "container/file_layout.h"
#include "format/orbax_metadata.h"
#include "format/zarr.h"
#include "view/view.h"

namespace ckfs {

class ItemArrays {
 public:
  /// Errors: Unsupported: a name that is not a path, that equals another's path or lies below it; a
  /// tensor that no array holds, or that its split does not divide; more than 2^24 chunks; database
  /// keys that are too long; too many kinds of arrays to choose chunks for; no array at all.
  static Result<ItemArrays> make(std::shared_ptr<const Definition> definition,
                                 zarr::Version version);

  const Definition& definition() const { return *definition_; }

  /// Arrays are numbered in the order of their keys in a database: of name + '/', by bytes.
  std::size_t size() const { return arrays_.size(); }
  std::string_view name(std::size_t array) const;
  const ArrayChunks& chunks(std::size_t array) const { return grids_[arrays_[array].grid]; }
  /// Number in Definition::tensors; ModelTensor::kNone: `step`, one element of zero bits.
  std::uint32_t tensor(std::size_t array) const { return arrays_[array].tensor; }

  // Chunks of all arrays, one after another.

  std::uint64_t first_chunk(std::size_t array) const { return arrays_[array].first_chunk; }
  std::uint64_t chunk_count() const { return chunk_count_; }
  /// The array of a chunk. Requires: chunk < chunk_count().
  std::size_t array_of(std::uint64_t chunk) const;

  std::string metadata(std::size_t array) const;
  /// "<name>/c/0/1"; of zarr's second version "<name>/0.1". Metadata is "<name>/zarr.json" or
  /// "<name>/.zarray".
  std::string chunk_path(std::size_t array, std::uint64_t number) const;
  std::string metadata_path(std::size_t array) const;

  /// Adds chunks [first, end) of an array to a layout, one behind another from `begin` on.
  void add_to(FileLayout& layout, std::size_t array, std::uint64_t first, std::uint64_t end,
              std::uint64_t begin) const;

  /// All leaves of the tree. Valid as long as the object.
  std::vector<orbax::Leaf> leaves() const;

  /// The leaf of the catalog's tree that a tensor of the definition is. Requires: whole_tree.
  const TreeLeaf& tree_leaf(std::uint32_t tensor) const;

  zarr::Version version() const { return version_; }

 private:
  struct Array {
    std::uint32_t tensor = 0;
    std::uint32_t grid = 0;
    std::uint64_t first_chunk = 0;
  };

  ItemArrays(std::shared_ptr<const Definition> definition, zarr::Version version)
      : definition_(std::move(definition)), version_(version) {}
  Result<void> check_names() const;
  Result<void> check_tree_names() const;
  Result<void> check_keys() const;
  std::string_view element(std::size_t array) const;
  Result<void> make_grids();

  std::shared_ptr<const Definition> definition_;
  zarr::Version version_;
  std::vector<Array> arrays_;
  std::vector<std::uint32_t> tree_leaves_;  // by tensor; of a whole tree
  std::vector<ArrayChunks> grids_;
  std::uint64_t chunk_count_ = 0;
};

}  // namespace ckfs
