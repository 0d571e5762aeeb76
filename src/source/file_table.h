// The files of a source tree, registered: from a path to the number by which they are read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/byte_source.h"
#include "base/error.h"
#include "catalog/catalog.h"
#include "io/source_files.h"
#include "source/source_tree.h"

namespace ckfs {

/// Bytes of all files of a source together, and of side files from elsewhere. With the 2^62 that
/// all tensors of a view may have and what views add to them, that is less than 2^63: sums of a
/// view's sizes are exact.
inline constexpr std::uint64_t kMaxSourceBytes = std::uint64_t{1} << 60;

/// What CatalogBuilder::saw_file() is told of a file: its name, and of a file of another machine
/// what its server calls its content.
std::string seen_name(std::string_view name, const Fingerprint& fingerprint);

/// Immutable. The tree must outlive it.
class FileTable {
 public:
  /// Registers every file of `tree` with `files`, and has `builder` show it in the view `source`
  /// and note what listing passed over.
  /// Errors: those of SourceFiles::add(), Unsupported (more bytes than kMaxSourceBytes).
  static Result<FileTable> create(const SourceTree& tree, SourceFiles& files,
                                  CatalogBuilder& builder);

  /// `path` as in TreeFile; nullopt: there is none.
  std::optional<FileId> find(std::string_view path) const;

  /// The same files, found by their paths below `folder`, which ends with '/'.
  FileTable below(const std::string& folder) const {
    FileTable table = *this;
    table.folder_ += folder;
    return table;
  }

 private:
  explicit FileTable(const SourceTree& tree) : tree_(&tree) {}

  const SourceTree* tree_;
  std::string folder_;  // in front of every path that is asked for
  FileId first_ = 0;    // the number of tree_->files[0]; the others follow in order
};

}  // namespace ckfs
