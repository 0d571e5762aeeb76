// How the tensors of a Hugging Face checkpoint are quantized: which are encoded and by what, which
// are companions, and what stands in the way of showing a tensor as numbers.
#pragma once

#include <optional>
#include <vector>

#include "base/byte_source.h"
#include "catalog/catalog.h"
#include "format/quantization_config.h"
#include "source/hf/tensor_names.h"

namespace ckfs {

/// Sets encodings, names and shapes, obstacles, notes and the quantization in `builder`. Gives, by
/// provisional id, whether a tensor is a companion or otherwise no part of the model's own tensors.
/// `names`: of the builder's tensors, each another.
/// `config` is what the configuration says; where it says nothing, names and dtypes decide. Errors:
/// those of reading the few small tensors that schemes want, and Corrupt (those have too many bytes
/// together, or patterns of `config` are too long or take too long).
Result<std::vector<bool>> apply_quantization(CatalogBuilder& builder, const TensorNames& names,
                                             const std::optional<QuantizationConfig>& config,
                                             ByteSource& source);

}  // namespace ckfs
