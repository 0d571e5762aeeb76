// From torch's tensors (strided views on storages) to the catalog's: storages that are exactly a
// tensor's own run of bytes, and boxes where the run is not in row-major order.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/byte_range.h"
#include "base/byte_source.h"
#include "base/error.h"
#include "catalog/catalog.h"
#include "format/torch_file.h"

namespace ckfs {

/// A tensor before it has a name.
struct PlacedTensor {
  std::vector<std::int64_t> shape;
  StorageId storage = 0;
  std::vector<StorageBox> boxes;  // empty: the whole storage in row-major order
};

/// Adds the storages of torch tensors to a CatalogBuilder; equal runs are one storage.
class TensorPlacer {
 public:
  /// `builder` must outlive it.
  explicit TensorPlacer(CatalogBuilder& builder) : builder_(builder) {}

  /// Places a tensor whose storage is `bytes` of `file`. Requires: `bytes` is what
  /// TorchFile::storage_bytes() gave for the tensor's storage; of a tensor without elements it does
  /// not matter.
  PlacedTensor place(const TorchTensor& tensor, FileId file, ByteRange bytes);

  /// The tensor at `node`, looked up and placed. Errors: those of TorchFile, with the names of file
  /// and of tensor, unless it is the storage that is wrong, before them; Corrupt where the pickle's
  /// budget is at its end.
  Result<PlacedTensor> place(const TorchFile& torch, NodeId node, std::string_view name,
                             FileId file, std::string_view file_name);

 private:
  using StorageKey = std::tuple<FileId, std::uint64_t, std::uint64_t, DType>;

  CatalogBuilder& builder_;
  std::map<StorageKey, StorageId> runs_;
};

/// `file: tensor "name": `, before what TorchFile says of a tensor.
Error tensor_error(const Error& error, std::string_view file_name, std::string_view name);

}  // namespace ckfs
