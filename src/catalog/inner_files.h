// Tensors whose place is found when they are first read. Each is alone in a torch file that lies
// inside of a file (an item of a .distcp), and its checkpoint says everything of it but where in
// there its elements begin. To look for that while a checkpoint is opened would open each of its
// files, and a large one has a million such items.
//
// An inner file has a FileId above those of real files and below those of chunks; its bytes are the
// tensor's elements in row-major order, so that storages, extents and plans know nothing of it: an
// InnerFileSource (chunks/inner_file_source.h) serves both kinds.
//
// Filled while a checkpoint is opened, by one thread; const from then on, and safe for concurrent
// use.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"
#include "base/error.h"
#include "catalog/chunk_table.h"
#include "tensor/dtype.h"

namespace ckfs {

/// Inner files are numbered from here on; real ones below.
inline constexpr FileId kFirstInnerFile = FileId{1} << 30;

/// Bytes that a torch file with one tensor may have beside the tensor's elements; torch writes less
/// than 2 KiB. To find the elements, as many as it has are read at each end of it.
inline constexpr std::uint64_t kMostAroundElements = 16384;

constexpr bool is_inner_file(FileId file) {
  return file >= kFirstInnerFile && !is_chunk(file);
}

/// The common data of a tensor's inner files of one shape.
struct InnerTensor {
  std::string_view name;  // of the tensor, for messages
  DType dtype = DType::U8;
  std::vector<std::int64_t> shape;
  std::uint64_t nbytes = 0;  // of the elements, more than 0
};

struct InnerFile {
  const InnerTensor* tensor = nullptr;
  FileRange stored = {};  // of a real file: the torch file
};

class InnerFiles {
 public:
  using TensorNumber = std::uint32_t;

  /// Keeps a copy of the name: one, in however many shapes the tensor's inner files come.
  TensorNumber add_tensor(InnerTensor tensor);

  /// Errors: Unsupported (2^30 are there). Requires: `stored` is of a real file, and larger than
  /// the tensor, by kMostAroundElements at most.
  Result<FileId> add(TensorNumber tensor, const FileRange& stored);

  bool empty() const { return rows_.empty(); }
  std::uint64_t count() const { return rows_.size(); }

  /// Requires: `file` was given by add().
  InnerFile file(FileId file) const {
    const Row& row = rows_[file - kFirstInnerFile];
    return {&tensors_[row.tensor], {row.file, row.offset, row.size}};
  }

 private:
  struct Row {
    std::uint64_t offset = 0, size = 0;
    FileId file = 0;
    TensorNumber tensor = 0;
  };

  std::set<std::string, std::less<>> names_;
  std::deque<InnerTensor> tensors_;
  std::vector<Row> rows_;
};

}  // namespace ckfs
