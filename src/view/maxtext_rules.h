// The rules that a kind of model has for MaxText's trees, and the numbers that they ask for.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "base/error.h"
#include "catalog/catalog.h"
#include "view/recipes/recipe.h"

namespace ckfs {

/// Which trees of a family are meant.
struct MaxTextChoice {
  std::optional<DType> dtype = {};            // that floats get; nullopt: they keep theirs
  bool mtp = false;                           // with the layers for multi-token prediction
  bool multimodal = false;                    // with the encoders of images and sounds
  std::string_view release = kNewestMaxText;  // of kMaxTextReleases; empty: the family's newest
};

struct MaxTextRules {
  const ModelFamily* family = nullptr;  // must outlive this
  ConfigNumbers config;

  const MaxTextTrees& trees() const { return *family->maxtext; }
};

/// The releases for which the family has trees of their own, the newest first; where it has one for
/// all, the newest of all.
std::span<const std::string_view> releases_of(const MaxTextTrees& trees);

/// Those of a family. Requires: it has some (ModelFamily::maxtext).
MaxTextRules rules_of(const ModelFamily& family, ConfigNumbers config, const MaxTextChoice& choice);

/// The tree with the layers stacked, of what the rules of MaxTextTrees::unscanned gave. Errors:
/// those of apply_rules(); Unsupported (MaxText has no such tree of the family).
Result<TensorList> scan(const MaxTextRules& rules, TensorList list);

/// Those of what --family or config.json says the model is. Errors: Unsupported (no such family; no
/// rules for such layers or encoders, or for this release), Corrupt (config.json).
Result<MaxTextRules> find_rules(const Catalog& catalog, const MaxTextChoice& choice,
                                const Recipes& recipes);

}  // namespace ckfs
