// Manifests and B-tree nodes of any OCDBT database, as TensorStore and Orbax write them: raw or in
// zstd, with base paths and stripped prefixes, whatever the height. Written from the format's
// description in TensorStore (tensorstore/kvstore/ocdbt/index.rst) and its codecs
// (format/codec_util.cc, manifest.cc, version_tree_codec.h, data_file_id_codec.cc, btree.cc,
// btree_codec.h).
//
// Only the newest version is read, and the manifest has that whole: nodes of the version tree lead
// to older ones. All functions are pure; errors are Corrupt, Unsupported (a form that is not known)
// or OutOfMemory, and begin with the name that the caller gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "format/ocdbt.h"

namespace ckfs::ocdbt {

inline constexpr std::string_view kManifestName = "manifest.ocdbt";

inline constexpr std::size_t kMaxName = 65535;  // of a key, of a data file's path
/// The most bytes of a manifest or node, stored and decoded. The caller checks the stored size.
inline constexpr std::uint64_t kMaxNode = std::uint64_t{128} << 20;

/// A data file: its path below the database's directory. What nodes in it refer to lies below the
/// first `base` bytes of that path.
struct DataFile {
  std::string path;
  std::size_t base = 0;

  std::string_view base_path() const { return std::string_view(path).substr(0, base); }
};

/// The newest version of a database.
struct Manifest {
  /// The state is in the newest of the files that numbered_manifest() recognizes; nothing else is
  /// known then.
  bool numbered = false;
  std::vector<DataFile> files;
  std::uint8_t height = 0;           // of the root; 0: a leaf
  std::optional<DataLocation> root;  // nullopt: there is no key
};

/// A compressed manifest decodes to at most 8 MiB and 64 times its bytes, else Corrupt.
Result<Manifest> parse_manifest(std::string_view bytes, std::string_view name);

/// The number of the file manifest.<16 hex digits>; nullopt: it is not such a file.
std::optional<std::uint64_t> numbered_manifest(std::string_view file_name);

/// A value of a leaf: in the node, or out of line at `place`.
struct Value {
  bool in_node = false;
  std::string_view text;  // in the node
  /// Where `text` is in the node's stored bytes; nullopt: nowhere, they are compressed.
  std::optional<std::uint64_t> at;
  DataLocation place;  // file: in Node::files()
};

/// A child of an interior node.
struct ChildRef {
  std::string_view key;  // no key below is less
  /// Bytes of `key` that all keys below begin with, and that the child leaves out.
  std::size_t stripped = 0;
  DataLocation place;
};

/// The facts that a reference to a node gives.
struct NodeContext {
  std::uint8_t height = 0;
  std::string_view base_path;   // of its file, DataFile::base_path()
  std::string_view least = {};  // no key of the node is less
  /// Bytes that decoding may make of it at most.
  std::uint64_t most_decoded = kMaxNode;
};

/// One node, checked whole. Entries are not kept but enumerated: a node may have a million, whose
/// keys share most of their bytes.
class Node {
 public:
  static Result<Node> parse(std::string bytes, const NodeContext& context, std::string_view name);

  std::uint8_t height() const { return height_; }
  const std::vector<DataFile>& files() const { return files_; }
  std::size_t entries() const { return entries_; }
  /// Bytes in memory: the decoded node, and its data files with their paths (when stored, paths
  /// share most of their bytes).
  std::uint64_t held() const;

  /// Keys as the node has them, ascending, behind `prefix`; valid during the call. Of a leaf.
  /// Errors: those of `take`.
  Result<void> for_each_value(
      const std::function<Result<void>(std::string_view key, const Value& value)>& take,
      std::string_view prefix = {}) const;
  /// The same of a node with children.
  Result<void> for_each_child(const std::function<Result<void>(const ChildRef& child)>& take) const;

 private:
  /// Where the columns begin in bytes_.
  struct Columns {
    std::size_t prefixes = 0, suffixes = 0, stripped = 0, keys = 0;
    std::size_t sizes = 0, kinds = 0, file_ids = 0, offsets = 0, values = 0;  // of a leaf
    std::size_t child_sizes = 0;                                              // of others
  };

  Result<void> read(std::string_view base_path, std::uint64_t stored, std::string_view name);
  Result<void> check(std::string_view least, std::string_view name) const;

  std::string bytes_;                 // stored, or decoded
  std::optional<std::uint64_t> raw_;  // where the body begins in the stored bytes, if raw
  std::uint8_t height_ = 0;
  std::vector<DataFile> files_;
  std::size_t entries_ = 0;
  Columns at_;
};

}  // namespace ckfs::ocdbt
