// Fuzz target: the .metadata of a DCP checkpoint. The chunks of what is accepted tile their tensor:
// a hole would be bytes made up.
#include "source/torch/dcp_metadata.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "fuzz/work_limit.h"

namespace {

void check_tensor(const ckfs::DcpTensor& tensor, std::size_t paths) {
  using namespace ckfs;
  const std::size_t rank = tensor.shape.size();
  std::int64_t covered = 0;
  for (const DcpChunk& chunk : tensor.chunks) {
    const auto offsets = tensor.offsets(chunk);
    const auto sizes = tensor.sizes(chunk);
    CKFS_CHECK(offsets.size() == rank && sizes.size() == rank && chunk.path < paths);
    CKFS_CHECK(chunk.offset <= chunk.offset + chunk.length);
    std::int64_t numel = 1;
    for (std::size_t d = 0; d < rank; ++d) {
      CKFS_CHECK(offsets[d] >= 0 && sizes[d] > 0);
      CKFS_CHECK(sizes[d] <= tensor.shape[d] - offsets[d]);
      numel *= sizes[d];
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
        apart = apart || tensor.offsets(a)[d] + tensor.sizes(a)[d] <= tensor.offsets(b)[d] ||
                tensor.offsets(b)[d] + tensor.sizes(b)[d] <= tensor.offsets(a)[d];
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
  for (const DcpTensor& tensor : metadata->tensors) check_tensor(tensor, metadata->paths.size());
  for (const std::string& path : metadata->paths) CKFS_CHECK(!path.empty());
  return 0;
}
