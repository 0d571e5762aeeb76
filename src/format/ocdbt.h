// An OCDBT database of one version as TensorStore reads it: a manifest and a B-tree, uncompressed,
// over values that lie anywhere in data files. Written from the format's description in TensorStore
// (tensorstore/kvstore/ocdbt/index.rst) and its codecs (format/codec_util.cc, manifest.cc,
// btree_codec.h, data_file_id_codec.cc, version_tree_codec.h).
//
// Checksums cover nodes only, so a node depends on keys, sizes and places, and of values on those
// alone that are in it. All functions are pure, the same on every host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/text_sink.h"

namespace ckfs::ocdbt {

/// Entries of a node at most. TensorStore takes a million, but then a lookup takes milliseconds.
inline constexpr std::size_t kNodeEntries = 4096;

/// The first four bytes, big-endian.
inline constexpr std::uint32_t kManifestMagic = 0x0cdb3a2a;
inline constexpr std::uint32_t kNodeMagic = 0x0cdb20de;

/// What a parent says of a node.
struct NodeTotals {
  std::uint64_t keys = 0;         // in the leaves below
  std::uint64_t tree_bytes = 0;   // of the node and all below
  std::uint64_t value_bytes = 0;  // out of line
};

/// Where a value, or a node, lies.
struct DataLocation {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// The path of a data file, relative to the database.
using FileName = std::function<std::string(std::uint32_t file)>;

/// Columns of a node are counted, or kept.
using CountedColumn = CountingSink;

class KeptColumn {
 public:
  void put(std::string_view text) { text_ += text; }
  std::uint64_t size() const { return text_.size(); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// A leaf, entry by entry, in ascending order of their keys.
template <typename Column>
class Leaf {
 public:
  /// `name` must outlive it.
  explicit Leaf(const FileName& name) : name_(name) {}

  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const DataLocation& value);

  std::size_t entries() const { return entries_; }
  std::uint64_t size() const;
  NodeTotals totals() const { return {entries_, size(), value_bytes_}; }
  /// size() bytes. Of KeptColumn.
  std::string render() const;

 private:
  void add_key(std::string_view key);
  template <typename Put>
  void put_file_table(Put put) const;

  const FileName& name_;
  std::size_t entries_ = 0;
  std::uint64_t value_bytes_ = 0;
  std::string last_;                            // the last key
  std::map<std::uint32_t, std::uint32_t> ids_;  // of data files, in the node's own table
  std::vector<std::uint32_t> files_;            // by that number
  Column prefixes_, suffixes_, keys_, sizes_, kinds_, file_ids_, offsets_, values_;
};

/// A node above others, which lie in one file: their first keys, places in it and totals.
struct Child {
  std::string first_key;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  NodeTotals totals;
};
/// Requires: 1 to kNodeEntries children, in ascending order of their first keys.
std::string render_interior(std::uint8_t height, std::string_view node_file,
                            std::span<const Child> children);

/// The manifest of a database whose root lies in `node_file`.
struct Root {
  std::uint64_t uuid[2] = {};
  std::uint8_t height = 0;  // 0: a leaf
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  NodeTotals totals;
};
std::string render_manifest(std::string_view node_file, const Root& root);

}  // namespace ckfs::ocdbt
