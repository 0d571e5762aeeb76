// Slices of tensors, joined: what torch's HuggingFaceStorageWriter(save_distributed=True) leaves.
// Each rank has written its slices under the whole tensors' names into files of its own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "catalog/catalog.h"
#include "format/safetensors.h"

namespace ckfs {

/// Not for concurrent use.
class TensorPieces {
 public:
  /// Whether the tensors of a file with this header are slices.
  static bool are_in(const safetensors::Header& header);

  /// Takes the tensors of one file. Errors: Corrupt, Unsupported (the entry that says where they
  /// lie is one of those that the header did not keep).
  Result<void> add(std::string_view path, FileId file, const safetensors::Header& header);

  bool empty() const { return tensors_.empty(); }
  /// Files, and slices in them.
  std::size_t files() const { return paths_.size(); }
  std::size_t size() const { return size_; }

  /// Adds all tensors to `builder`, and gives their ids, by name. Slices that follow each other
  /// along the first dimension are one storage, others are boxes. Errors: Corrupt, each naming the
  /// tensor and the files (slices of different dtypes or dimensions, that overlap, or that do not
  /// fill the tensor), Unsupported (thousands that make no grid).
  Result<std::vector<TensorId>> join(CatalogBuilder& builder);

 private:
  struct TensorSlice {
    std::uint32_t path = 0;  // index of paths_
    FileId file = 0;
    DType dtype = DType::U8;
    std::uint64_t offset = 0;  // of its first byte in the file
    std::vector<std::int64_t> begin, count;
  };
  using Slices = std::vector<TensorSlice>;

  Result<std::vector<std::int64_t>> whole_shape(std::string_view name, const Slices& pieces) const;
  Result<void> check_disjoint(std::string_view name, const Slices& pieces) const;
  Failure missing(std::string_view name, std::span<const std::int64_t> shape, const Slices& pieces,
                  std::int64_t elements) const;
  std::string missing_rank() const;

  std::map<std::string, Slices, std::less<>> tensors_;
  std::vector<std::string> paths_;
  std::size_t size_ = 0;
};

}  // namespace ckfs
