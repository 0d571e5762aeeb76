// Checkpoints of torch.distributed.checkpoint (DCP): a pickle .metadata that says which part of
// which tensor lies where in the files *.distcp, each part a torch file of its own.
#pragma once

#include <memory>

#include "base/error.h"
#include "catalog/catalog.h"
#include "io/source_files.h"
#include "source/open_checkpoint.h"
#include "source/source_tree.h"

namespace ckfs {

/// Whether `tree` is such a checkpoint: .metadata and *.distcp at its top, or in a directory there.
bool is_torch_dcp(const SourceTree& tree, const OpenCheckpointOptions& options);

/// Reads .metadata and the pickle of every part. Errors: as open_checkpoint().
Result<std::shared_ptr<const Catalog>> open_torch_dcp(const SourceTree& tree, SourceFiles& files,
                                                      const OpenCheckpointOptions& options);

}  // namespace ckfs
