// Fuzz target: a *_model_states.pt or *_optim_states.pt of DeepSpeed. Partitions of what is
// accepted lie in the file, and shapes have the elements that they say.
#include "source/deepspeed/deepspeed_states.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "fuzz/fuzz_input.h"
#include "fuzz/work_limit.h"

namespace {

using namespace ckfs;

template <typename T>
bool failed(const Result<T>& result) {
  if (result) return false;
  CKFS_CHECK(result.error().message().find('\n') == std::string::npos);
  return true;
}

void check_groups(const std::vector<ParameterGroup>& groups) {
  for (const ParameterGroup& group : groups) {
    for (const NamedShape& parameter : group) {
      std::int64_t numel = 1;
      for (const std::int64_t extent : parameter.shape) {
        CKFS_CHECK(extent >= 0);
        numel *= extent;
      }
      CKFS_CHECK(numel == parameter.numel);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const ckfs::WorkLimit limit(size);
  OneFile source(std::as_bytes(std::span(data, size)));
  if (const auto states = read_model_states(source, 0); !failed(states)) {
    if (states->parameters) check_groups(*states->parameters);
    check_groups({states->frozen});
    CKFS_CHECK(states->world >= 0 && states->model_parallel >= 0);
  }
  if (const auto states = read_optimizer_states(source, 0); !failed(states)) {
    CKFS_CHECK(states->world >= 0);
    for (const PartitionRun& run : states->groups) {
      const auto width = static_cast<std::uint64_t>(bits(run.dtype) / 8);
      CKFS_CHECK(run.numel >= 0 && run.offset <= size);
      CKFS_CHECK(static_cast<std::uint64_t>(run.numel) <= (size - run.offset) / width);
    }
  }
  if (const auto old = read_old_shapes(source, 0); !failed(old) && *old) {
    check_groups((*old)->parameters);
  }
  return 0;
}
