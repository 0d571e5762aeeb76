// All files of a view, by path, whatever containers they come from: a listing of all, and layouts
// for opened ones.
//
// Costs 24 bytes a file beside its path, and the container's own memory. Layouts are made on
// request. The last ones stay, up to kKeptLayouts bytes (one at least), and so do all that are in
// use.
//
// Safe for concurrent use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/byte_source.h"
#include "base/error.h"
#include "base/mutex.h"
#include "container/container.h"

namespace ckfs {

/// Which users may read the files of a source (bits of 0444), and so the files that are made of
/// them.
struct SourceReaders {
  std::uint32_t tensors = 0444;                       // all files of tensors, and the configuration
  std::unordered_map<FileId, std::uint32_t> of_file;  // where it is not 0444
};

class ViewFiles {
 public:
  /// Bytes of layouts that are kept although they are not in use.
  static constexpr std::size_t kKeptLayouts = std::size_t{16} << 20;

  /// Sizes, names and inodes are final from here. Errors: those of make_containers(), Unsupported
  /// (two files of one name, or of one inode; a file and a folder of one name).
  static Result<std::unique_ptr<const ViewFiles>> create(
      const std::shared_ptr<const Definition>& definition, const ByteSource& source,
      std::shared_ptr<const SourceReaders> readers = std::make_shared<SourceReaders>());

  /// Files are numbered from 0 by path in byte order.
  std::size_t size() const { return rows_.size(); }
  /// Valid as long as the object.
  std::string_view path(std::size_t file) const;
  FileFacts facts(std::size_t file) const;
  /// Bits of 0444.
  std::uint32_t readers(const FileFacts& facts) const;
  /// A stable hash of (canonical view name, path); never 0 or 1.
  std::uint64_t inode(std::size_t file) const { return rows_[file].inode; }
  std::optional<std::size_t> find(std::string_view path) const;
  /// The model tensors of the file, in its own order: numbers in definition(file).
  std::vector<std::uint32_t> tensors(std::size_t file) const;
  /// The view's, or that of the part whose directory the file lies in; and that directory.
  const std::shared_ptr<const Definition>& definition(std::size_t file) const {
    return packed_[rows_[file].container].definition;
  }
  const std::string& directory(std::size_t file) const {
    return packed_[rows_[file].container].directory;
  }

  /// The file's layout, by itself.
  FileLayout lay_out(std::size_t file) const;
  /// The same, shared: one object while it is in use, always of one serial.
  std::shared_ptr<const FileLayout> layout(std::size_t file) const;
  /// How many layouts have been made.
  std::uint64_t layouts_made() const { return made_.load(std::memory_order_relaxed); }

  /// The files that have tensors in the order in which the container numbers them.
  std::vector<std::size_t> tensor_files() const;

 private:
  struct Row {
    std::uint64_t inode = 0;
    std::uint64_t path_end = 0;   // in paths_, where the next begins
    std::uint32_t number = 0;     // in its container
    std::uint32_t container = 0;  // in packed_
  };
  struct Packed {
    std::shared_ptr<const Container> container;
    std::shared_ptr<const Definition> definition;
    std::string directory;
  };

  ViewFiles() = default;
  Result<void> pack(const std::shared_ptr<const Definition>& definition,
                    const std::string& directory, const ByteSource& source);

  std::vector<Packed> packed_;
  std::shared_ptr<const SourceReaders> readers_;
  std::string paths_;  // one after another
  std::vector<Row> rows_;
  std::uint64_t first_serial_ = 0;

  mutable std::atomic<std::uint64_t> made_ = 0;
  mutable Mutex mutex_;
  mutable std::unordered_map<std::size_t, std::weak_ptr<const FileLayout>> known_
      CKFS_GUARDED_BY(mutex_);
  mutable std::size_t known_limit_ CKFS_GUARDED_BY(mutex_) = 64;  // then expired ones are dropped
  mutable std::deque<std::shared_ptr<const FileLayout>> recent_ CKFS_GUARDED_BY(mutex_);
  mutable std::size_t recent_bytes_ CKFS_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckfs
