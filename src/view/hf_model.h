// The views that are a Hugging Face model directory: all tensors of a catalog in one float dtype,
// in safetensors shards with an index, config.json edited, side files as they are.
#pragma once

#include <memory>
#include <vector>

#include "base/error.h"
#include "view/view.h"
#include "view/view_table.h"

namespace ckfs {

/// Every tensor that keeps the catalog from being shown so; empty: it can.
std::vector<Obstacle> hf_model_obstacles(const Catalog& catalog);

/// What a user of the view `row` should know: dtypes that pass unchanged, files with another name.
std::vector<Note> hf_model_remarks(const Catalog& catalog, const ViewRow& row);

/// Requires: hf_model_obstacles() is empty, `spec` is normalized and of `row`. Errors:
/// InvalidArgument (max_shard makes too many files), Corrupt (config.json).
Result<std::shared_ptr<const Definition>> define_hf_model(std::shared_ptr<const Catalog> catalog,
                                                          const ViewRow& row, const ViewSpec& spec);

}  // namespace ckfs
