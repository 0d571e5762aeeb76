// The rules that a kind of model has for MaxText's trees, and the numbers that they ask for.
#pragma once

#include "base/error.h"
#include "catalog/catalog.h"
#include "view/recipes/recipe.h"

namespace ckfs {

struct MaxTextRules {
  const MaxTextTrees* trees = nullptr;  // of the family, which must outlive this
  ConfigNumbers config;
};

/// Those of a family. Requires: it has some (ModelFamily::maxtext).
MaxTextRules rules_of(const ModelFamily& family, ConfigNumbers config, bool mtp);

/// Those of what --family or config.json says the model is. `mtp`: with the layers for
/// multi-token prediction. Errors: Unsupported (no such family; no rules for such layers), Corrupt
/// (config.json).
Result<MaxTextRules> find_rules(const Catalog& catalog, bool mtp, const Recipes& recipes);

}  // namespace ckfs
