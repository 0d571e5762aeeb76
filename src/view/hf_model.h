// The views that are a Hugging Face model directory: the tensors of a catalog in one float dtype or
// as they are stored, config.json edited, side files as they are. zero_to_fp32's output is such a
// directory.
#pragma once

#include <memory>
#include <vector>

#include "base/error.h"
#include "view/view.h"
#include "view/view_table.h"

namespace ckfs {

/// Why the catalog cannot be shown as the view `row`; empty: it can, unless the rules for a tree of
/// MaxText find obstacles (maxtext_tree_obstacles()).
std::vector<Obstacle> hf_model_obstacles(const Catalog& catalog, const ViewRow& row,
                                         Unscaled unscaled);

/// Remarks for users of the view `row`: dtypes that pass unchanged, tensors that are left out, a
/// missing config.json.
std::vector<Note> hf_model_remarks(const Catalog& catalog, const ViewRow& row);

/// Requires: hf_model_obstacles() is empty, `spec` is normalized and of `row`. Errors: Corrupt
/// (config.json), Unsupported (the layout of experts that `spec` asks for; a tree of MaxText that
/// does not fit the rules; `maxtext` of another source, or a release whose tree it is not).
Result<std::shared_ptr<Definition>> define_hf_model(std::shared_ptr<const Catalog> catalog,
                                                    const ViewRow& row, const ViewSpec& spec,
                                                    const Recipes& recipes);

}  // namespace ckfs
