// A torch storage is what was allocated, not what a tensor uses: all parameters of a group share
// one, and a slice of a big tensor is saved with all of it. If the catalog's storages were torch's,
// a contiguous tensor in the middle would be a box at an offset, and reading it could not be
// recognized as a plain copy of file bytes. So each run gets a storage of its own; they share
// nothing, except that their extents may overlap.
#include "source/torch/torch_tensors.h"

#include "base/text.h"

namespace ckfs {

PlacedTensor TensorPlacer::place(const TorchTensor& tensor, FileId file, ByteRange bytes) {
  PlacedTensor placed{tensor.shape, 0, {}};
  const ByteRange run = run_of(tensor);
  CKFS_CHECK(run.end <= bytes.size());
  if (run.empty()) {
    placed.storage = builder_.add_storage(tensor.dtype, 0, {});
    return placed;
  }
  const Extent extent{file, bytes.begin + run.begin, run.size()};
  const StorageKey key{file, extent.offset, extent.nbytes, tensor.dtype};
  auto known = runs_.find(key);
  if (known == runs_.end()) {
    const auto elements =
        static_cast<std::int64_t>(run.size() * 8 / static_cast<std::uint64_t>(bits(tensor.dtype)));
    known = runs_.emplace(key, builder_.add_storage(tensor.dtype, elements, std::span(&extent, 1)))
                .first;
  }
  placed.storage = known->second;
  if (is_contiguous(tensor)) return placed;

  StorageBox box{placed.storage, 0, {}, tensor.shape, tensor.stride};
  box.begin.assign(tensor.shape.size(), 0);
  placed.boxes.push_back(std::move(box));
  return placed;
}

Result<PlacedTensor> TensorPlacer::place(const TorchFile& torch, NodeId node, std::string_view name,
                                         FileId file, std::string_view file_name) {
  auto tensor = torch.tensor(node);
  CKFS_TRY_VOID(torch.pickle().budget()->check(file_name));
  if (!tensor) return Failure(tensor_error(tensor.error(), file_name, name));
  if (run_of(*tensor).empty()) return place(*tensor, file, {});  // perhaps without a member
  CKFS_TRY(const ByteRange bytes, torch.storage_bytes(tensor->storage));
  return place(*tensor, file, bytes);
}

Error tensor_error(const Error& error, std::string_view file_name, std::string_view name) {
  return error.within(fmt::format("{}: tensor {}", file_name, quote(name)));
}

}  // namespace ckfs
