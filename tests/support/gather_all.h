// Carries out a GatherPlan on one thread.
#pragma once

#include "engine/gather.h"

namespace ckfs {

/// Writes target elements [begin, end) to `out`, batch by batch. Gives the files that were read, a
/// file of several batches several times. Requires: what GatherPlan::make() and run() do, for
/// staging.size().
inline Result<std::vector<FileId>> gather(const Catalog& catalog, ByteSource& source,
                                          const TensorExpr& expr, std::int64_t begin,
                                          std::int64_t end, std::span<std::byte> out,
                                          std::span<std::byte> staging, KernelSet kernels) {
  const GatherPlan plan = GatherPlan::make(catalog, expr, begin, end, staging.size());
  std::vector<FileId> files;
  for (std::size_t batch = 0; batch < plan.batches(); ++batch) {
    CKFS_TRY(const std::vector<FileId> read, plan.run(batch, source, staging, out, kernels));
    files.insert(files.end(), read.begin(), read.end());
  }
  return files;
}

}  // namespace ckfs
