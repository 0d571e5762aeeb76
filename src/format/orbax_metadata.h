// The small files of an Orbax PyTree item. Written from Orbax 0.12 (metadata/tree.py: _METADATA;
// path/atomicity.py: commit_success.txt). All functions are pure.
//
// There is no _CHECKPOINT_METADATA: Orbax does not need it. Its v1 refuses to open anything below a
// directory that has one, and a directory that has it in only one of its items.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace ckfs::orbax {

/// A leaf of the tree. `name` is the path of dict keys, joined by '.'.
struct Leaf {
  enum class Kind : std::uint8_t { Array, Scalar, EmptyDict, Other };
  std::string_view name;  // UTF-8
  Kind kind = Kind::Array;
  /// Where `name` does not say it all: each key, 'k' (of a dict) or 'i' (a place in a list), its
  /// text, which has no NUL, and NUL.
  std::string_view path = {};
  std::string_view type = {};  // of Other: "None", "Tuple", "string"
};

/// The keys of Leaf::path, joined by '.'.
std::string joined_keys(std::string_view path);

/// How the arrays are stored.
struct Storage {
  bool ocdbt = true;
  bool zarr3 = true;
};

/// _METADATA. Arrays are np.ndarray and not jax.Array: then a restore needs no _sharding, and gives
/// jax arrays where it is asked for them.
/// `custom`: JSON of the user's own; empty: none.
std::uint64_t measure_metadata(std::span<const Leaf> leaves, Storage storage,
                               std::string_view custom = {});
std::string render_metadata(std::span<const Leaf> leaves, Storage storage,
                            std::string_view custom = {});

/// _strings.json: leaves that are strings, (name, text).
std::string render_strings(std::span<const std::pair<std::string, std::string_view>> strings);

/// array_metadatas/process_0 of arrays that are keys of random number generators.
struct KeyArray {
  std::string_view name;
  std::span<const std::int64_t> shape, chunk;
  std::string_view kind;
};
std::string render_array_metadatas(std::span<const KeyArray> arrays);

/// commit_success.txt of `directory`: without it, a copy in gs:// is not a checkpoint.
std::string render_commit_success(std::string_view directory);

}  // namespace ckfs::orbax
