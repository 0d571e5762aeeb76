// The view that has the tensors of a Hugging Face view in a checkpoint of
// torch.distributed.checkpoint, for dcp.load; under the names of that view, or of torchtitan.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "view/recipes/recipe.h"
#include "view/view.h"
#include "view/view_table.h"

namespace ckfs {

inline constexpr std::string_view kDcpView = "dcp";
inline constexpr std::string_view kHuggingFaceNames = "hf";  // what `names` says of them

/// Cuts each tensor into a part for each index of its leading dimensions, as many of them as
/// `dimensions` says, and no more than it has.
void cut_leading(Definition& definition, std::size_t (*dimensions)(const ModelTensor&));

/// The row of the view whose tensors it has: that of its dtype.
const ViewRow& dcp_model_row(const ViewSpec& spec);

/// Folders with weights of their own, for which one dictionary of tensors has no place.
std::vector<Obstacle> part_obstacles(const Catalog& catalog);

/// Why the model's tensors cannot be shown so: the obstacles of the view in `row`, dtypes that
/// torch does not have, part_obstacles(). Empty: they can.
std::vector<Obstacle> dcp_obstacles(const Catalog& catalog, const ViewRow& row, Unscaled unscaled);

/// Requires: dcp_obstacles() of dcp_model_row() is empty; `spec` is normalized and of this view.
/// Errors: those of define_hf_model(), or of define_program_model() with another `names`;
/// InvalidArgument (`experts` with such names).
Result<std::shared_ptr<Definition>> define_dcp(std::shared_ptr<const Catalog> catalog,
                                               const ViewSpec& spec, const Recipes& recipes);

}  // namespace ckfs
