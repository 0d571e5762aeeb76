// How the tensors of a Hugging Face checkpoint are quantized: which are encoded and by what, which
// are companions, and why a tensor cannot be shown as numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/byte_source.h"
#include "catalog/catalog.h"
#include "format/quantization_config.h"
#include "source/hf/tensor_names.h"

namespace ckfs {

/// The cost so far of reading the configurations of one checkpoint, all folders together.
struct QuantizationCost {
  std::size_t pattern_steps = 0;  // at most ModuleTargets::kMostSteps
  std::uint64_t read = 0;         // bytes of tensors that say how others are quantized: 96 MiB
};

/// Sets encodings, names and shapes, obstacles, notes and the quantization in `builder`. Gives, by
/// provisional id, whether a tensor is a companion or otherwise no part of the model's own tensors.
/// `names`: of the builder's tensors, each another.
/// `config` is what the configuration says; where it says nothing, names and dtypes decide. Adds to
/// `cost`, also where it fails. Errors: those of reading the few small tensors that schemes want,
/// and Corrupt (those have too many bytes together, or patterns of `config` are too long or take
/// too long, by `cost`).
Result<std::vector<bool>> apply_quantization(CatalogBuilder& builder, const TensorNames& names,
                                             const std::optional<QuantizationConfig>& config,
                                             ByteSource& source, QuantizationCost& cost);

}  // namespace ckfs
