// How the elements of a strided tensor lie in its storage.
#include <algorithm>

#include "format/torch_file.h"

namespace ckfs {
namespace {

bool is_empty(const TorchTensor& tensor) {
  return std::ranges::find(tensor.shape, 0) != tensor.shape.end();
}

}  // namespace

bool is_contiguous(const TorchTensor& tensor) {
  if (is_empty(tensor)) return true;
  std::int64_t expected = 1;
  for (std::size_t d = tensor.shape.size(); d-- > 0;) {
    if (tensor.shape[d] == 1) continue;
    if (tensor.stride[d] != expected) return false;
    expected *= tensor.shape[d];
  }
  return true;
}

ByteRange run_of(const TorchTensor& tensor) {
  if (is_empty(tensor)) return {};
  std::int64_t last = 0;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    if (tensor.shape[d] > 1) last += (tensor.shape[d] - 1) * tensor.stride[d];
  }
  const auto width = static_cast<std::uint64_t>(bits(tensor.dtype)) / 8;  // torch has none below 8
  const std::uint64_t begin = static_cast<std::uint64_t>(tensor.offset) * width;
  return {begin, begin + (static_cast<std::uint64_t>(last) + 1) * width};
}

}  // namespace ckfs
