// Metadata and chunk names of zarr arrays, versions 3 and 2, as TensorStore reads them: regular
// grids of uncompressed chunks, little-endian. Written from the Zarr core specifications v3.0 and
// v2 and from what TensorStore accepts (tensorstore/driver/zarr3/metadata.cc, codec/transpose.cc,
// codec/bytes.cc; driver/zarr/metadata.cc, dtype.cc). All functions are pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace ckfs::zarr {

enum class Version : std::uint8_t { V2 = 2, V3 = 3 };

/// TensorStore's limit.
inline constexpr std::size_t kMaxRank = 32;

/// What an array's metadata calls a dtype; empty: no array holds it.
std::string_view data_type_name(Version version, DType dtype);

/// Whether an array's elements are the tensor's: not so where several share a byte.
bool can_hold(DType dtype);

struct ArrayHead {
  DType dtype = DType::U8;
  std::span<const std::int64_t> shape;
  std::span<const std::int64_t> chunk;
  /// Stored dimension d is dimension order[d] of the array; empty: as they are. Version 2 has no
  /// other order than the reverse.
  std::span<const std::int64_t> order;
};

/// The file of an array's metadata in its directory.
std::string_view metadata_name(Version version);

/// Requires: can_hold(), and an order that the version has.
std::string render_metadata(Version version, const ArrayHead& array);

/// The name of a chunk below the array's directory.
std::string chunk_name(Version version, std::span<const std::int64_t> index);

}  // namespace ckfs::zarr
