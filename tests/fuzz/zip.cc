// Fuzz target: a torch file, zip or stream. What is accepted must name tensors inside storages
// inside the file.
#include <cstddef>
#include <cstdint>

#include "format/torch_file.h"
#include "fuzz/fuzz_input.h"
#include "fuzz/work_limit.h"

namespace {

void check_tensors(const ckfs::TorchFile& torch, std::uint64_t size) {
  using namespace ckfs;
  for (std::uint32_t i = 0; i < torch.storage_count(); ++i) {
    const auto range = torch.storage_bytes(i);
    if (range) CKFS_CHECK(range->end <= size && range->size() == torch.storage_size(i));
  }
  for (NodeId node = 0; node < torch.pickle().node_count(); ++node) {
    const auto tensor = torch.tensor(node);
    CKFS_CHECK(!tensor || torch.is_tensor(node));
    if (!tensor) continue;
    std::int64_t numel = 1;
    std::int64_t last = tensor->offset;
    for (std::size_t d = 0; d < tensor->shape.size(); ++d) {
      CKFS_CHECK(tensor->shape[d] >= 0 && tensor->stride[d] >= 0);
      if (tensor->shape[d] == 0) numel = 0;
    }
    for (std::size_t d = 0; numel != 0 && d < tensor->shape.size(); ++d) {
      last += (tensor->shape[d] - 1) * tensor->stride[d];
    }
    const auto width = static_cast<std::uint64_t>(bits(tensor->dtype) / 8);
    CKFS_CHECK(numel == 0 || (static_cast<std::uint64_t>(last) + 1) * width <=
                                 torch.storage_size(tensor->storage));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const WorkLimit limit(size);
  OneFile source(std::as_bytes(std::span(data, size)));
  const auto torch = TorchFile::open(source, 0, {0, size});
  if (torch) {
    check_tensors(*torch, size);
  } else {
    CKFS_CHECK(torch.error().message().find('\n') == std::string::npos);
  }
  return 0;
}
