// A source that is a checkpoint of MaxText: its tree of parameters, in whatever container, and the
// way from there to the names and shapes of Hugging Face, by the rules of the way there.
//
// The tree is known by its names alone. Parameters lie below params.params (Linen), params, base or
// nothing, in NNX with `value` as their last word; all else (optimizer state, step) is no part of a
// model and no byte of it is read.
#pragma once

#include <optional>
#include <vector>

#include "base/error.h"
#include "catalog/catalog.h"
#include "view/recipes/recipe.h"
#include "view/view.h"

namespace ckfs {

bool is_maxtext_tree(const Catalog& catalog);

/// Which of `recipes.families` the tree is of, where neither config.json nor --family says it: the
/// only one whose rules fit. nullopt: another source, or none fits, or several. It takes the way
/// back by the rules of every family, several times what a view costs: Recipes::family_by_names
/// keeps it.
std::optional<std::size_t> family_of_names(const Catalog& catalog, const Recipes& recipes);

/// The tensors of the Hugging Face model that the tree was made of, or would be: what
/// to_huggingface writes, in the order of its names. Floats are cast to `dtype` first, as that tool
/// does; nullopt: none is. Requires: is_maxtext_tree(). Errors: Unsupported (no family, or several
/// that may be meant; what does not fit the rules, with file, line and tensor), Corrupt
/// (config.json).
Result<TensorList> huggingface_tensors(const Catalog& catalog, std::optional<DType> dtype,
                                       const Recipes& recipes);

struct TreeOptions {
  bool scanned = false;
  bool mtp = false;   // with the layers for multi-token prediction, where there are any
  bool axes = false;  // TensorList::axes and ModelTensor::split are wanted
};

/// The tree itself as it is scanned or not, under its names in Linen: what reshard_checkpoint
/// keeps. Floats are cast to `dtype`. Requires and errors: the same.
Result<TensorList> tree_tensors(const Catalog& catalog, std::optional<DType> dtype,
                                const TreeOptions& options, const Recipes& recipes);

/// What keeps the tree from being shown in Hugging Face's names, and in its own; empty: nothing.
std::vector<Obstacle> maxtext_tree_obstacles(const Catalog& catalog, const Recipes& recipes);

}  // namespace ckfs
