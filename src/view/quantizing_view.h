// The views whose weights are quantized on read: bf16-safetensors, or the floats that the source
// has, with the weights that a tool would choose as codes and scales, and the configuration that
// the tool writes. Each tensor is equal to what that tool makes on the CPU.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "view/view.h"
#include "view/view_table.h"

namespace ckfs {

inline constexpr std::string_view kFp8View = "fp8-safetensors";
inline constexpr std::string_view kCtView = "ct-safetensors";
inline constexpr std::string_view kNf4View = "nf4-safetensors";
/// The view that shows the values before they are quantized.
inline constexpr std::string_view kPlainView = "bf16-safetensors";

/// The values of `scheme`, the default first.
inline constexpr std::array<std::string_view, 8> kCtSchemes{
    "FP8_DYNAMIC", "FP8_BLOCK", "W8A8", "W4A16", "W4A16_ASYM", "MXFP4A16", "MXFP8A16", "NVFP4A16"};

/// Whether the view only moves what the source stores, except FP4 that it shows as FP8: then
/// nothing else needs to be decoded.
bool is_exact(const ViewSpec& spec);

/// Why the source cannot be shown as the view `row` without parameters, as far as names, dtypes and
/// shapes of its tensors say; empty: it can. A layout of experts that recipes make, and trees of
/// MaxText, are not tried. Requires: hf_model_obstacles() of kPlainView is empty.
std::vector<Obstacle> quantizing_obstacles(const Catalog& catalog, const ViewRow& row,
                                           const Recipes& recipes);

/// Remarks for users of the view.
std::vector<Note> quantizing_remarks(const Catalog& catalog, const ViewRow& row);

/// Requires: hf_model_obstacles() of kPlainView is empty, or is_exact(); `spec` is normalized and
/// of `row`. Tensors that prevent the view are added to `obstacles`, and then the result has no
/// meaning. Errors: those of define_hf_model(); InvalidArgument (parameters that do not go
/// together, a pattern that is not understood); Unsupported (experts in a layout that no recipe
/// splits).
Result<std::shared_ptr<Definition>> define_quantizing_view(std::shared_ptr<const Catalog> catalog,
                                                           const ViewRow& row, const ViewSpec& spec,
                                                           const Recipes& recipes,
                                                           std::vector<Obstacle>& obstacles);

}  // namespace ckfs
