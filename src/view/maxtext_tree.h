// A source that is a checkpoint of MaxText: its tree of parameters, in whatever container, and the
// way from there to the names and shapes of Hugging Face, by the rules of the way there.
//
// The tree is known by its names alone. Parameters lie below params.params (Linen), params, base or
// nothing, in NNX with `value` as their last word; Linen has collections beside params.params, and
// those that the rules of the model's family know are parameters, too. All else (optimizer state,
// step) is not part of a model and no byte of it is read. The same holds for the state of random
// number generators, which NNX has among them at any level.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "catalog/catalog.h"
#include "view/recipes/recipe.h"
#include "view/view.h"

namespace ckfs {

bool is_maxtext_tree(const Catalog& catalog);

/// The Hugging Face model that a tree was made of, or would be.
struct TreeModel {
  const ModelFamily* family = nullptr;  // of the Recipes that it was found in, which keep it
  /// The release of MaxText whose tree it is: the newest that the arrays fit.
  std::string_view release = kNewestMaxText;
  /// Whether the tree would be another in some other release that the family has rules for.
  bool release_matters = false;
  ConfigNumbers given;       // before the way back
  ConfigNumbers config;      // with what the arrays say of it
  bool does_values = false;  // Undone::does_values
  DroppedArrays left_out;    // Undone::left_out
  /// By name, in the dtypes of the tree.
  TensorList list;
  /// The models that the arrays are by the rules of other releases that they fit, too; those have
  /// no `others`.
  std::vector<std::shared_ptr<const TreeModel>> others;
};

/// The result of a search for the model, perhaps a failure. Errors: Unsupported (no family, or
/// several that may be meant; what does not fit the rules, with file, line and tensor), Corrupt
/// (config.json).
struct FoundTree {
  const Catalog* catalog = nullptr;  // that was searched; its parts have trees of their own
  Result<std::shared_ptr<const TreeModel>> model;
};

/// Finds the model by config.json or --family; without both, by the only family whose rules fit.
/// That tries the way back by the rules of every family, at several times the cost of a view. So it
/// is done once for a checkpoint, and kept in Recipes::tree. Requires: is_maxtext_tree().
std::shared_ptr<const FoundTree> find_tree(const Catalog& catalog, const Recipes& recipes);

/// The same model, not as what a view of another release would take the arrays for; as find_tree()
/// found it where that was asked.
Result<std::shared_ptr<const TreeModel>> tree_model(const Catalog& catalog, const Recipes& recipes);

/// The model's tensors: what to_huggingface writes, in the order of its names. Floats are cast to
/// `dtype` first, as that tool does; nullopt: none is. Where nothing is done to values on the way,
/// the result shares names and boxes with the model. `release`: of MaxText, whose tree it is;
/// empty: the newest that the arrays fit. Requires: is_maxtext_tree(). Errors: those of FoundTree,
/// and what does not fit the rules; Unsupported where the arrays do not fit the release.
Result<TensorList> huggingface_tensors(const Catalog& catalog, std::optional<DType> dtype,
                                       std::string_view release, const Recipes& recipes);

struct TreeOptions {
  bool scanned = false;
  bool mtp = false;         // with the layers for multi-token prediction, where there are any
  bool multimodal = false;  // with the encoders of images and sounds, where there are any
  bool axes = false;        // TensorList::axes and ModelTensor::split are wanted
  /// Whose tree is wanted. Where the arrays fit it, they are taken for its tree.
  std::string_view release = kNewestMaxText;
};

/// The tree itself as it is scanned or not, under its names in Linen: what reshard_checkpoint
/// keeps. Floats are cast to `dtype`. A tree of another release is made of the model, where nothing
/// is done to values on the way. Requires and errors: the same.
Result<TensorList> tree_tensors(const Catalog& catalog, std::optional<DType> dtype,
                                const TreeOptions& options, const Recipes& recipes);

/// A note on the parameters that the views of the model leave out: the state of random number
/// generators. nullopt: there is none, or this is not such a tree.
std::optional<Note> maxtext_tree_remark(const Catalog& catalog);

/// A note on the arrays that views of Hugging Face models leave out, because such a model has
/// nothing of them. nullopt: there are none. Requires: is_maxtext_tree().
std::optional<Note> maxtext_model_remark(const Catalog& catalog, const Recipes& recipes);

/// Why the tree cannot be shown in Hugging Face's names, and in its own; empty: it can. (A tree
/// that is not scanned may still have too few layers to be: tree_tensors() says.)
std::vector<Obstacle> maxtext_tree_obstacles(const Catalog& catalog, const Recipes& recipes);

}  // namespace ckfs
