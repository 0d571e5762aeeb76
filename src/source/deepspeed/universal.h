// Universal checkpoints, which DeepSpeed's ds_to_universal makes of its own: a directory with one
// file for each parameter's master, zero/<name>/fp32.pt, beside copies of the model files.
#pragma once

#include <memory>

#include "base/error.h"
#include "catalog/catalog.h"
#include "io/source_files.h"
#include "source/open_checkpoint.h"
#include "source/source_tree.h"

namespace ckfs {

/// Whether `tree` is meant to be such a checkpoint.
bool is_universal(const SourceTree& tree, const OpenCheckpointOptions& options);

/// Reads the pickles of the files it needs, by several threads. Errors: as open_checkpoint().
Result<std::shared_ptr<const Catalog>> open_universal(const SourceTree& tree, SourceFiles& files,
                                                      const OpenCheckpointOptions& options);

}  // namespace ckfs
