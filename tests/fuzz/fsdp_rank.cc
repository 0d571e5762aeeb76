// Fuzz target: the file of an FSDP rank. Parts of what is accepted lie inside the tensor, and their
// elements in the file.
#include "source/torch/fsdp_rank.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "fuzz/fuzz_input.h"
#include "fuzz/work_limit.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const WorkLimit limit(size);
  OneFile source(std::as_bytes(std::span(data, size)));
  constexpr std::uint32_t kWorld = 4;
  FsdpRankReader reader(source, kWorld, "");
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto state = reader.read(0, rank);
    if (!state) {
      CKFS_CHECK(state.error().message().find('\n') == std::string::npos);
      return 0;
    }
    for (const RankTensor& tensor : state->tensors) {
      for (const RankTensor::Piece& piece : tensor.pieces) {
        CKFS_CHECK(piece.local.dtype == tensor.said->dtype);
        CKFS_CHECK(piece.begin.size() == tensor.said->shape.size());
        CKFS_CHECK(piece.local.shape.size() == tensor.said->shape.size());
        for (std::size_t d = 0; d < tensor.said->shape.size(); ++d) {
          CKFS_CHECK(piece.begin[d] >= 0 && piece.local.shape[d] > 0);
          CKFS_CHECK(piece.local.shape[d] <= tensor.said->shape[d] - piece.begin[d]);
        }
        CKFS_CHECK(piece.bytes.end <= size && run_of(piece.local).end <= piece.bytes.size());
      }
    }
  }
  return 0;
}
