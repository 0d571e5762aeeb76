// Checkpoints that torch.save wrote: a single file of any name, a directory with one, or shards
// with an index.
#pragma once

#include <memory>

#include "base/error.h"
#include "catalog/catalog.h"
#include "io/source_files.h"
#include "source/open_checkpoint.h"
#include "source/source_tree.h"

namespace ckfs {

/// Whether `tree` is such a checkpoint, by the first bytes of its files.
bool is_torch_files(const SourceTree& tree, const OpenCheckpointOptions& options);

/// Reads pickles and index. Errors: as open_checkpoint().
Result<std::shared_ptr<const Catalog>> open_torch_files(const SourceTree& tree, SourceFiles& files,
                                                        const OpenCheckpointOptions& options);

}  // namespace ckfs
