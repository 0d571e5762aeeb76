// Metadata and chunk names of zarr arrays, versions 3 and 2, as TensorStore accepts them: regular
// grids; the codecs transpose, bytes, sharding_indexed, and those of bytes, which are named and not
// run here. Written from the Zarr core specifications v3.0 and v2 and from TensorStore
// (tensorstore/driver/zarr3/metadata.cc, codec/*.cc; driver/zarr/metadata.cc, dtype.cc).
//
// All functions are pure. Errors: Corrupt (what the specification forbids, an integer fill value
// beyond the dtype's range (by less than a double's precision: Unsupported), an extent above 2^53,
// a number that no double holds, JSON beyond the limits of json_tree.h), Unsupported (another fill
// value that the dtype does not have (0 of F8_E8M0 is its zero bits), and what the specification
// allows and TensorStore or ckfs does not); each begins with the name the caller gives. A fill
// value of F32, F16 or BF16 beyond the range is an infinity, as a cast makes it; one of F8 is
// rounded to F32 first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "format/zarr.h"
#include "tensor/dtype.h"

namespace ckfs::zarr {

inline constexpr std::size_t kMaxMetadata = std::size_t{1} << 20;  // bytes

/// How the name of a chunk is made of its indices.
struct ChunkNames {
  bool prefixed = true;  // "c", then each index behind a separator; else "0.1", and "0" of none
  char separator = '/';

  bool operator==(const ChunkNames&) const = default;
};

/// A chunk's bytes within those that lie in storage.
struct ChunkCodecs {
  /// Stored dimension d is dimension order[d] of the array; empty: as they are.
  std::vector<std::int64_t> order;
  bool big_endian = false;
  /// The names of what turns bytes into bytes, as a writer applies them: "zstd", "crc32c".
  std::vector<std::string> bytes_codecs;
};

/// The array's chunks are shards, each of inner chunks behind or before an index of their places:
/// pairs of offset and size, in the order of the shard's dimensions as stored.
struct Sharding {
  /// Of the shard: the order in which its inner chunks are counted.
  std::vector<std::int64_t> order;
  /// The codecs after the one that puts the shard together.
  std::vector<std::string> bytes_codecs;
  bool index_at_end = true;
  bool index_crc32c = false;
  bool index_big_endian = false;
};

/// An array, whichever version.
struct Metadata {
  Version version = Version::V3;
  std::string data_type;       // as the metadata has it
  std::optional<DType> dtype;  // nullopt: DType does not have it; see width
  int width = 0;               // bytes of an element; 0: not known
  std::vector<std::int64_t> shape;
  /// Of what a key names: a chunk, or a shard.
  std::vector<std::int64_t> chunk;
  /// The shape that has bytes of its own: `chunk`, or an inner chunk, which divides it.
  std::vector<std::int64_t> inner;
  ChunkCodecs codecs;
  std::optional<Sharding> sharding;
  ChunkNames names;
  /// An element of a chunk that is absent, little-endian; empty: zeros.
  std::string fill;
  /// It is not zeros, but no DType has such elements: the bits are not known.
  bool unknown_fill = false;

  /// Elements of `inner`.
  std::int64_t inner_numel() const;
};

Result<Metadata> parse_metadata(Version version, std::string_view text, std::string_view name);

/// The indices that `text`, a chunk's name below its array's directory, means; nullopt: it is not
/// such a name in an array of that rank.
std::optional<std::vector<std::int64_t>> parse_chunk_name(const ChunkNames& names, std::size_t rank,
                                                          std::string_view text);

}  // namespace ckfs::zarr
