// The small files of an Orbax PyTree item. Written from Orbax 0.12 (metadata/tree.py: _METADATA;
// metadata/step_metadata_serialization.py: _CHECKPOINT_METADATA; path/atomicity.py:
// commit_success.txt). All functions are pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ckfs::orbax {

/// A leaf of the tree. `name` is the path of dict keys, joined by '.'.
struct Leaf {
  enum class Kind : std::uint8_t { Array, Scalar, EmptyDict };
  std::string_view name;  // UTF-8
  Kind kind = Kind::Array;
};

/// How the arrays are stored.
struct Storage {
  bool ocdbt = true;
  bool zarr3 = true;
};

/// _METADATA. Arrays are np.ndarray and not jax.Array: then a restore needs no _sharding, and gives
/// jax arrays where it is asked for them.
std::uint64_t measure_metadata(std::span<const Leaf> leaves, Storage storage);
std::string render_metadata(std::span<const Leaf> leaves, Storage storage);

/// _CHECKPOINT_METADATA of which only the custom part is known: `custom` is JSON.
std::string render_checkpoint_metadata(std::string_view custom);

/// commit_success.txt of `directory`: without it, a copy in gs:// is no checkpoint.
std::string render_commit_success(std::string_view directory);

}  // namespace ckfs::orbax
