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

/// Whether the view has the parameters of all layers stacked. Requires: a row of MaxText.
inline bool is_scanned(const ViewRow& row) {
  return row.name == "maxtext-scanned";
}

/// A view without parameters, or the reasons why the catalog cannot be shown so.
struct MaxTextView {
  std::vector<Obstacle> obstacles;
  std::shared_ptr<const Definition> definition;  // nullptr: it was not needed to know
};

/// Both of them. Whether the rules fit is only known when they are done: so the views are made, the
/// second of the first.
struct MaxTextViews {
  MaxTextView unscanned, scanned;
};
MaxTextViews find_maxtext_views(const std::shared_ptr<const Catalog>& catalog,
                                const Recipes& recipes);

/// Remarks on releases of MaxText, for users of these views and of views whose source is such a
/// tree: where their trees differ, and which one the source is.
std::vector<Note> maxtext_remarks(const Catalog& catalog, const Recipes& recipes);

/// Requires: the catalog has no obstacles, `spec` is normalized and of `row`. Errors: Unsupported
/// (no such family; no rules of it for mtp or the release; what does not fit its rules, with file,
/// line and tensor; a mesh that does not divide), Corrupt (config.json).
Result<std::shared_ptr<Definition>> define_maxtext(std::shared_ptr<const Catalog> catalog,
                                                   const ViewRow& row, const ViewSpec& spec,
                                                   const Recipes& recipes);

}  // namespace ckfs
