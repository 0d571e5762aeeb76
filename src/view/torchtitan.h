// A source whose tensors have torchtitan's names, in Hugging Face's: by the rules that the model's
// family has for the way.
//
// Such a tree is known by its names alone, and only among DCP checkpoints: Meta's own files have
// nearly the same names, and are shown as they are.
#pragma once

#include <optional>
#include <vector>

#include "base/error.h"
#include "catalog/catalog.h"
#include "view/recipes/recipe.h"
#include "view/view.h"

namespace ckfs {

bool is_titan_tree(const Catalog& catalog);

/// Whether views of the model have Hugging Face's names: such a tree, and config.json or --family
/// says of what model.
bool reads_titan_names(const Catalog& catalog, const Recipes& recipes);

/// The model's tensors, each cast to `dtype` but those that the family keeps as they are in BF16;
/// nullopt: none is cast. Requires: reads_titan_names(). Errors: Unsupported (no rules for the
/// family; what does not fit them, with file, line and tensor), Corrupt (config.json).
Result<TensorList> titan_tensors(const Catalog& catalog, std::optional<DType> dtype,
                                 const Recipes& recipes);

/// Why a view of the model cannot be shown; empty: it can. Requires: reads_titan_names().
std::vector<Obstacle> titan_obstacles(const Catalog& catalog, const Recipes& recipes);

/// A remark on the names of such a tree: by which rules they are read, or that nothing says the
/// model. nullopt: this is not such a tree, or titan_obstacles() says more.
std::optional<Note> titan_remark(const Catalog& catalog, const Recipes& recipes);

}  // namespace ckfs
