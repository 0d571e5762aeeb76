// How the tensors of a Hugging Face checkpoint are quantized: which are encoded and by what, which
// are companions, and what stands in the way of showing a tensor as numbers.
#pragma once

#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "catalog/catalog.h"
#include "format/json_text.h"

namespace ckfs {

/// All tensors of a checkpoint by name; provisional ids of a CatalogBuilder.
using TensorNames = std::unordered_map<std::string_view, TensorId>;

/// Sets encodings, obstacles, notes and the quantization text in `builder`. Gives, by provisional
/// id, whether a tensor is a companion or otherwise no part of the model's own tensors. `config` is
/// what config.json says; where it says nothing, names and dtypes decide.
std::vector<bool> apply_quantization(CatalogBuilder& builder, const TensorNames& names,
                                     const std::optional<QuantizationConfig>& config);

}  // namespace ckfs
