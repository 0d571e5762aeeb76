// How a view's tensors are put into files: as the source has them, or by size as huggingface_hub
// does it. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "view/view.h"

namespace ckfs {

/// What a container's files are called: by loaders, so by us.
struct FileNames {
  std::string_view stem;
  std::string_view extension;

  /// The file where there is just one.
  std::string single() const;
  /// File `number` (from 1) of `count`.
  std::string numbered(std::size_t number, std::size_t count) const;
  std::string index() const;
};

inline constexpr FileNames kSafetensorsNames{"model", ".safetensors"};
inline constexpr FileNames kTorchNames{"pytorch_model", ".bin"};

/// Shards of the source that keep a tensor.
std::vector<const Shard*> kept_shards(const Catalog& catalog);

/// Whether mirrored shards cannot have the source's names. Loaders prefer a model.safetensors to an
/// index beside it and would miss the other shards (transformers, modeling_utils.py); so no
/// directory may have both.
bool must_rename(std::span<const Shard* const> shards);

/// The source's shards. Requires: tensor i of the view is the i-th of those that the shards name.
std::vector<TensorFile> mirror_shards(const Catalog& catalog);

/// huggingface_hub's split_torch_state_dict_into_shards: greedy in the given order; a tensor that
/// is larger than `max_bytes` becomes a shard of its own before the one that is open; what shares
/// the bytes of a tensor before it follows that tensor, at the end of its shard. Tensors without
/// elements all share their bytes, of which there are none.
std::vector<TensorFile> split_by_size(std::span<const ViewTensor> tensors, std::uint64_t max_bytes,
                                      const FileNames& names);

}  // namespace ckfs
