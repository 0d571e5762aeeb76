// Checkpoints of safetensors files: a Hugging Face model directory or a single file.
#pragma once

#include <memory>

#include "base/error.h"
#include "catalog/catalog.h"
#include "io/source_files.h"
#include "source/open_checkpoint.h"
#include "source/source_tree.h"

namespace ckfs {

/// Whether `tree` is meant to be such a checkpoint, complete or not.
bool is_hf_safetensors(const SourceTree& tree, const OpenCheckpointOptions& options);

/// Reads index, headers and configuration. Errors: as open_checkpoint().
Result<std::shared_ptr<const Catalog>> open_hf_safetensors(const SourceTree& tree,
                                                           SourceFiles& files,
                                                           const OpenCheckpointOptions& options);

}  // namespace ckfs
