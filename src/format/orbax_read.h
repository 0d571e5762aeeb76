// The tree of an Orbax PyTree item, as Orbax 0.4 and later write it (metadata/tree.py: _METADATA)
// and as those before did (the file `checkpoint`: Flax's msgpack,
// orbax/checkpoint/msgpack_utils.py, utils.py). All functions are pure; errors are Corrupt or
// Unsupported and begin with the name that the caller gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_range.h"
#include "base/error.h"
#include "tensor/dtype.h"

namespace ckfs::orbax {

inline constexpr std::uint64_t kMaxMetadata = std::uint64_t{512} << 20;  // bytes of _METADATA
inline constexpr std::uint64_t kMaxMsgpack = std::uint64_t{64} << 20;    // of `checkpoint`
inline constexpr int kMaxTreeDepth = 64;

/// A step of a path: a key of a dict (or an attribute), or a place in a list or tuple.
struct PathKey {
  std::string text;  // UTF-8; of a place what the file has, in decimal where Orbax wrote it
  bool is_index = false;

  bool operator==(const PathKey&) const = default;
};

/// The keys joined by '.': what the array of a leaf is called.
std::string joined(const std::vector<PathKey>& path);

/// A leaf of the tree in _METADATA. Empty containers and None are leaves.
struct TreeLeaf {
  std::vector<PathKey> path;  // empty: the tree is one leaf
  std::string value_type;     // "jax.Array", "np.ndarray", "scalar", "string", "None", "Dict", ...
  bool skip_deserialize = false;
};

/// What _METADATA says beside the tree.
struct ItemFlags {
  std::optional<bool> use_ocdbt;  // nullopt: whether there is a manifest decides
  bool use_zarr3 = false;
  bool missing_chunk_is_error = false;
  std::string custom_metadata;  // its JSON; empty: none, or null
};

/// Calls `take` with each leaf, in the order of the text. Errors: also that of `take`, which ends
/// it.
Result<ItemFlags> parse_item_metadata(std::string_view text, std::string_view name,
                                      const std::function<Result<void>(TreeLeaf leaf)>& take);

/// A leaf of the tree in `checkpoint`.
struct MsgpackLeaf {
  enum class Kind : std::uint8_t {
    Placeholder,  // its array is called `text`
    Array,        // here: `bytes` of the file, of numpy's dtype `text`
    Text,         // a string, `text`
    Other,        // a number, a boolean, bytes: `text` says what
    None,
    Dict,  // empty
    List,  // empty
  };
  std::vector<PathKey> path = {};
  Kind kind = Kind::None;
  std::string text = {};
  std::optional<DType> dtype = {};       // of Array; nullopt: none that views show
  std::vector<std::int64_t> shape = {};  // of Array
  ByteRange bytes = {};                  // of Array: plain, row-major
};

/// The leaves in the order of the file. A chunked array is a dict of such.
Result<std::vector<MsgpackLeaf>> parse_msgpack_tree(std::string_view bytes, std::string_view name);

}  // namespace ckfs::orbax
