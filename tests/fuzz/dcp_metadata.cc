// Fuzz target: the .metadata of a DCP checkpoint. The chunks of what is accepted tile their tensor:
// a hole would be bytes made up.
#include "source/torch/dcp_metadata.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "fuzz/work_limit.h"

namespace {

void check_tensor(const ckfs::DcpTensor& tensor) {
  using namespace ckfs;
  const std::size_t rank = tensor.shape.size();
  std::int64_t covered = 0;
  for (const DcpChunk& chunk : tensor.chunks) {
    CKFS_CHECK(chunk.offsets.size() == rank && chunk.sizes.size() == rank && !chunk.path.empty());
    CKFS_CHECK(chunk.offset <= chunk.offset + chunk.length);
    std::int64_t numel = 1;
    for (std::size_t d = 0; d < rank; ++d) {
      CKFS_CHECK(chunk.offsets[d] >= 0 && chunk.sizes[d] > 0);
      CKFS_CHECK(chunk.sizes[d] <= tensor.shape[d] - chunk.offsets[d]);
      numel *= chunk.sizes[d];
    }
    covered += numel;
  }
  std::int64_t numel = 1;
  for (const std::int64_t extent : tensor.shape) numel *= extent;
  CKFS_CHECK(covered == numel);
  if (tensor.chunks.size() > 64) return;
  for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      bool apart = false;
      const DcpChunk& a = tensor.chunks[i];
      const DcpChunk& b = tensor.chunks[j];
      for (std::size_t d = 0; d < rank; ++d) {
        apart = apart || a.offsets[d] + a.sizes[d] <= b.offsets[d] ||
                b.offsets[d] + b.sizes[d] <= a.offsets[d];
      }
      CKFS_CHECK(apart);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const WorkLimit limit(size);
  const auto pickle = parse_pickle(std::as_bytes(std::span(data, size)), "f");
  if (!pickle) return 0;
  const auto metadata = read_dcp_metadata(*pickle, "f", [](std::string_view) { return true; });
  if (!metadata) {
    CKFS_CHECK(metadata.error().message().find('\n') == std::string::npos);
    return 0;
  }
  for (const DcpTensor& tensor : metadata->tensors) check_tensor(tensor);
  return 0;
}
