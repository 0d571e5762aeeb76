// Groups model tensors into files: as in the source, or by size as huggingface_hub does. Pure
// functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "view/view.h"

namespace ckfs {

/// The names of a container's files: those that loaders expect.
struct FileNames {
  std::string_view stem;
  std::string_view extension;

  /// The file where there is just one.
  std::string single() const;
  /// File `number` (from 1) of `count`.
  std::string numbered(std::size_t number, std::size_t count) const;
  /// The file of a layer; nullopt: of tensors without a layer.
  std::string of_layer(std::optional<std::uint32_t> layer) const;
  std::string index() const;
};

inline constexpr FileNames kSafetensorsNames{"model", ".safetensors"};
inline constexpr FileNames kTorchNames{"pytorch_model", ".bin"};

/// The tensors of each file: numbers in Definition::tensors.
using TensorGroups = std::vector<std::vector<std::uint32_t>>;

/// Groups as in the source's shards, in their order; a shard without a tensor in the view has no
/// file. Requires: every tensor names its shard.
TensorGroups mirror_shards(std::span<const ModelTensor> tensors);

/// huggingface_hub's split_torch_state_dict_into_shards: greedy in the given order; a tensor that
/// is larger than `max_bytes` becomes a shard of its own before the one that is open. Tensors
/// without elements all share their zero bytes. With `shares`, so do the other names of a tensor: a
/// tensor that shares the bytes of an earlier one follows it, at the end of its shard.
TensorGroups split_by_size(std::span<const ModelTensor> tensors, std::uint64_t max_bytes,
                           bool shares);

/// Which layer a tensor belongs to: the number behind the first part of its name that is "layers"
/// and has one behind it.
std::optional<std::uint32_t> layer_of(std::string_view tensor);

/// One file for each layer, in order, then one for all other tensors.
TensorGroups split_by_layer(std::span<const ModelTensor> tensors);

/// Whether mirrored files cannot have the paths of the source's shards. Loaders prefer a
/// model.safetensors to an index beside it and would miss the other shards (transformers,
/// modeling_utils.py); so no directory may have both.
bool must_rename(std::span<const std::string_view> paths);

/// A note for users on the names of the view's files; none for most views.
std::vector<Note> placement_remarks(const Catalog& catalog, std::string_view view);

}  // namespace ckfs
