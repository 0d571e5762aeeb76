// Checkpoints of DeepSpeed's ZeRO optimizers, stages 1 to 3: a directory with one optimizer file a
// rank, below a directory whose file `latest` names it.
#pragma once

#include <memory>

#include "base/error.h"
#include "catalog/catalog.h"
#include "io/source_files.h"
#include "source/open_checkpoint.h"
#include "source/source_tree.h"

namespace ckfs {

/// Whether `tree` is meant to be such a checkpoint, and `options` do not choose another kind in it.
bool is_deepspeed_zero(const SourceTree& tree, const OpenCheckpointOptions& options);

/// Reads the pickles of the rank files, by several threads. Errors: as open_checkpoint().
Result<std::shared_ptr<const Catalog>> open_deepspeed_zero(const SourceTree& tree,
                                                           SourceFiles& files,
                                                           const OpenCheckpointOptions& options);

}  // namespace ckfs
