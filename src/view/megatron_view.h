// The view that is a checkpoint of Megatron-Core: the Hugging Face model under Megatron's names and
// shapes, by the rules of its family, as Megatron's own loader takes it.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "view/recipes/recipe.h"
#include "view/view.h"
#include "view/view_table.h"

namespace ckfs {

inline constexpr std::string_view kMegatronView = "megatron-torch-dist";

/// The view without parameters, or the reasons why the catalog cannot be shown so. Whether the
/// rules fit is only known when they are done, so it is made.
struct MegatronView {
  std::vector<Obstacle> obstacles;
  std::shared_ptr<const Definition> definition;  // nullptr: there are obstacles
};
MegatronView find_megatron_view(const std::shared_ptr<const Catalog>& catalog,
                                const Recipes& recipes);

/// Requires: `spec` is normalized and of this view. Errors: those of define_hf_model(); Unsupported
/// (no rules for this model; what does not fit them, with file, line and tensor; layers that are
/// not alike cannot be stacked).
Result<std::shared_ptr<Definition>> define_megatron(std::shared_ptr<const Catalog> catalog,
                                                    const ViewSpec& spec, const Recipes& recipes);

}  // namespace ckfs
