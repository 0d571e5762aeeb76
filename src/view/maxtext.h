// The views that are a checkpoint of MaxText: its tree of parameters, made of a Hugging Face model
// by the rules of the model's family, as an Orbax item.
#pragma once

#include <memory>
#include <vector>

#include "base/error.h"
#include "view/recipes/recipe.h"
#include "view/view.h"
#include "view/view_table.h"

namespace ckfs {

/// Everything that keeps the catalog from being shown as the view `row` without parameters; empty:
/// it can. Whether the rules fit is only known when they are done, so this costs what
/// define_maxtext() does.
std::vector<Obstacle> maxtext_obstacles(const std::shared_ptr<const Catalog>& catalog,
                                        const ViewRow& row, const Recipes& recipes);

/// Requires: the catalog has no obstacles, `spec` is normalized and of `row`. Errors: Unsupported
/// (no such family; what does not fit its rules, with file, line and tensor; a mesh that does not
/// divide), Corrupt (config.json).
Result<std::shared_ptr<Definition>> define_maxtext(std::shared_ptr<const Catalog> catalog,
                                                   const ViewRow& row, const ViewSpec& spec,
                                                   const Recipes& recipes);

}  // namespace ckfs
