// The keys of an OCDBT database, and where their values are: its manifest and all nodes of the
// B-tree are read when it is opened, of the values those only that lie in nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"
#include "base/error.h"
#include "format/ocdbt_read.h"
#include "io/source_files.h"
#include "source/file_table.h"

namespace ckfs {

/// Where the bytes of a key are: in a file, or nowhere but in memory.
struct StoredValue {
  FileRange range;                        // where `bytes` is nullopt
  std::optional<std::string_view> bytes;  // valid as long as the database
  std::uint64_t size() const { return bytes ? bytes->size() : range.size; }
};

using TakeEntry = std::function<Result<void>(std::string_view key, const StoredValue& value)>;

class OcdbtDatabase {
 public:
  /// `directory`: of the database in the tree, with its '/'. Keeps at most 24 MiB and 64 times the
  /// stored bytes of its nodes (else Corrupt). While reading it also holds 32 MiB of stored nodes,
  /// or one node. `tree`, `files` and `table` must outlive it. Errors: NotFound (a file that it
  /// refers to), Corrupt, Unsupported, Io, Stale, OutOfMemory.
  static Result<OcdbtDatabase> open(const SourceTree& tree, SourceFiles& files,
                                    const FileTable& table, std::string directory);

  /// All keys, ascending. Errors: those of `take`; NotFound or Corrupt (the file of a value is not
  /// there, or too short).
  Result<void> for_each(const TakeEntry& take) const;

  /// Bytes of its nodes, as they are stored.
  std::uint64_t stored_bytes() const { return stored_bytes_; }

 private:
  struct Leaf {
    ocdbt::Node node;
    std::string prefix;  // what its keys leave out
    FileId file = 0;
    std::uint64_t offset = 0;  // in it
  };
  /// A node to be read.
  struct Wanted;

  OcdbtDatabase(const SourceTree& tree, SourceFiles& files, const FileTable& table,
                std::string directory)
      : tree_(&tree), files_(&files), table_(&table), directory_(std::move(directory)) {}

  Result<ocdbt::Manifest> read_manifest() const;
  Result<ocdbt::Manifest> parse_file(const std::string& path) const;
  Result<std::string> read_stored(const Wanted& wanted) const;
  Result<ocdbt::Node> parse_node(std::string bytes, const Wanted& wanted, std::uint64_t most) const;
  Result<void> read_tree(const ocdbt::Manifest& manifest);
  Result<FileId> file_of(std::string_view path) const;
  Result<void> descend(std::vector<Wanted>& next, ocdbt::Node node, const Wanted& from,
                       std::string& last, const std::function<Result<void>(std::uint64_t)>& check);

  const SourceTree* tree_;
  SourceFiles* files_;
  const FileTable* table_;
  std::string directory_;
  std::vector<Leaf> leaves_;
  std::uint64_t stored_bytes_ = 0;
};

}  // namespace ckfs
