// The base of every adapter of src/source: the numbers of the tree's files, the catalog it fills,
// and the files that a training checkpoint shows beside its tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"
#include "base/error.h"
#include "catalog/catalog.h"
#include "io/source_files.h"
#include "source/file_table.h"
#include "source/open_checkpoint.h"
#include "source/repeated_headers.h"
#include "source/source_tree.h"

namespace ckfs {

/// One opening of one checkpoint. The tree, the files and the options must outlive it.
class SourceOpener {
 public:
  SourceOpener(const SourceOpener&) = delete;
  SourceOpener& operator=(const SourceOpener&) = delete;
  virtual ~SourceOpener() = default;

  /// Registers all files of the tree, then read(). Call it once. Errors: as Adapter::open.
  Result<std::shared_ptr<const Catalog>> open();

  /// The same for a folder of a tree whose files another opener has registered in `table`, which
  /// finds them by their paths in the folder. The catalog has no files, and knows nothing of theirs
  /// (mtime, fingerprint).
  Result<std::shared_ptr<const Catalog>> open_part(FileTable table);

 protected:
  /// `kind` as Catalog::kind(). `whole`: the opener of the checkpoint that has this as a folder; it
  /// outlives this. The limits on files with several names and on elements of tensors are for all
  /// folders together.
  SourceOpener(const SourceTree& tree, SourceFiles& files, const OpenCheckpointOptions& options,
               std::string_view kind, SourceOpener* whole = nullptr);

  /// Reads headers and hands all tensors and shards to `builder_`.
  virtual Result<void> read() = 0;

  /// Requires: the tree has this file.
  FileId id(std::string_view path) const { return table_->find(path).value(); }
  std::optional<FileId> find(std::string_view path) const { return table_->find(path); }
  const FileTable& table() const { return *table_; }

  /// The whole of a text file; of one that has several names, paid for as headers are. Errors:
  /// those of read_text(), Corrupt.
  Result<std::string> read_once(FileId file, std::uint64_t limit);

  /// find_model_directory(), given to the builder. After the tensors: they decide whether what
  /// config.json says of quantization matters.
  Result<void> add_model(const std::optional<std::filesystem::path>& beside);

  /// Opens the adapters of `paths` as parts of the checkpoint; of none but those in folders, and
  /// there it is noted, may one be broken. Errors: as Adapter::open.
  Result<void> add_adapters(const std::vector<std::string>& paths);

  /// Whether an adapter that views show lies in `folder` ("": at the top).
  bool has_adapter(std::string_view folder) const {
    return adapter_folders_.find(folder) != adapter_folders_.end();
  }

  /// Facts on how much of `total` bytes of files will be read.
  void add_byte_facts(std::uint64_t read, std::uint64_t total);

  /// Sum of the sizes of the files whose paths begin with `prefix` and end with `ending`.
  std::uint64_t bytes_of(std::string_view prefix, std::string_view ending = {}) const;

  const SourceTree& tree_;
  SourceFiles& files_;
  const OpenCheckpointOptions& options_;
  CatalogBuilder builder_;

 private:
  RepeatedHeaders own_repeated_, own_searched_;
  std::int64_t own_elements_ = 0;

 protected:
  RepeatedHeaders& repeated_;
  RepeatedHeaders& searched_;  // of headers that are looked through, and then read

 private:
  /// `error`; or, if the file is only a Git-LFS pointer, an error that says so.
  Failure explained(const Error& error) const;
  Result<void> count_elements(const Catalog& catalog);
  Result<std::shared_ptr<const Catalog>> finish();
  void note_lfs_pointers();
  /// Says of what model the adapter at the top is, which is all that is there.
  Result<void> add_adapter_fact(FileId config);

  std::int64_t& elements_;          // of all tensors of the whole checkpoint so far
  std::optional<FileTable> table_;  // in open()
  std::set<std::string, std::less<>> adapter_folders_;
};

}  // namespace ckfs
