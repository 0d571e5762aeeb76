#include "catalog/inner_files.h"

#include "base/text.h"

namespace ckfs {

InnerFiles::TensorNumber InnerFiles::add_tensor(InnerTensor tensor) {
  CKFS_CHECK(tensor.nbytes > 0);
  auto name = names_.find(tensor.name);
  if (name == names_.end()) name = names_.emplace(tensor.name).first;
  tensor.name = *name;
  tensors_.push_back(std::move(tensor));
  return static_cast<TensorNumber>(tensors_.size() - 1);
}

Result<FileId> InnerFiles::add(TensorNumber tensor, const FileRange& stored) {
  const std::uint64_t nbytes = tensors_[tensor].nbytes;
  CKFS_CHECK(stored.file < kFirstInnerFile);
  CKFS_CHECK(stored.size > nbytes && stored.size - nbytes <= kMostAroundElements);
  if (rows_.size() >= kFirstChunkFile - kFirstInnerFile) {
    return fail(ErrorCode::Unsupported, "tensor {}: more than {} parts with those before it",
                quote(tensors_[tensor].name), rows_.size());
  }
  rows_.push_back({stored.offset, stored.size, stored.file, tensor});
  return static_cast<FileId>(kFirstInnerFile + rows_.size() - 1);
}

}  // namespace ckfs
