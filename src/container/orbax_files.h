// The files of every Orbax item beside its chunks: the metadata of its tree, and the marks of a
// finished checkpoint.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "container/container.h"
#include "container/item_arrays.h"

namespace ckfs {

/// Files of an item: each costs a directory entry, and some memory.
inline constexpr std::uint64_t kMostFiles = std::uint64_t{1} << 19;

/// Files are those of the storage, by number, and the small ones behind them.
class OrbaxContainer : public Container {
 public:
  std::size_t size() const final { return stored() + small_.size(); }
  std::string path(std::size_t file) const final;
  FileFacts facts(std::size_t file) const final;
  std::vector<std::uint32_t> tensors(std::size_t file) const final;
  FileLayout lay_out(std::size_t file) const final;

 protected:
  OrbaxContainer(ItemArrays arrays, orbax::Storage storage);

  const ItemArrays& arrays() const { return arrays_; }

  // Of files of the storage.
  virtual std::size_t stored() const = 0;
  virtual std::string stored_path(std::size_t file) const = 0;  // within the item
  virtual FileFacts stored_facts(std::size_t file) const = 0;
  virtual std::vector<std::uint32_t> stored_tensors(std::size_t file) const = 0;
  virtual FileLayout lay_out_stored(std::size_t file) const = 0;

  /// A layout that is one text.
  static FileLayout text_layout(std::uint64_t size, std::function<std::string()> render);

 private:
  enum class Kind : std::uint8_t { Tree, Strings, Keys, Commit };
  struct Small {
    Kind kind = Kind::Tree;
    std::string path;  // within the view
    std::uint64_t size = 0;
  };

  std::string render(const Small& small) const;
  /// The source's tree; nullptr: the view does not have it.
  const ItemTree* tree() const;
  std::string_view tree_metadata() const;
  /// Leaves that are strings, (name, text).
  std::vector<std::pair<std::string, std::string_view>> strings() const;
  std::vector<orbax::KeyArray> key_arrays() const;
  /// Tensors without elements: no chunk shows them.
  std::vector<std::uint32_t> empty_tensors() const;

  const ItemArrays arrays_;
  const orbax::Storage storage_;
  const std::string directory_;
  std::vector<Small> small_;
};

}  // namespace ckfs
