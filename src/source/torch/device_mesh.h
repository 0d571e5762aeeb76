// Which box of a tensor a rank of a mesh of devices has: arithmetic on what was saved, nothing
// read. Pure functions on values.
//
// Each axis of the mesh divides one dimension of the tensor, or none. Devices along an axis have
// pieces as torch.chunk() cuts them: of 5 rows over 4 devices 2, 2, 1 and 0. Where several axes
// divide one dimension, each divides what those before it left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ckfs {

/// How the devices along an axis share a tensor.
struct AxisPlacement {
  enum class Kind : std::uint8_t { Replicate, Shard, StridedShard };
  Kind kind = Kind::Replicate;
  std::size_t dim = 0;            // of the tensor; not of Replicate
  std::int64_t split_factor = 1;  // of StridedShard: the pieces that later axes cut before this one
};

/// The axes that divide a dimension, in the order in which they do.
struct DivisionOrder {
  std::size_t dim = 0;
  std::vector<std::size_t> axes;
};

struct DeviceMesh {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> place;  // of the rank: less than `shape`
};

/// Elements begin[d] to begin[d] + count[d] - 1 in each dimension d.
struct DeviceBox {
  std::vector<std::int64_t> begin, count;
};

/// The axes that divide dimension `dim`. A plain axis divides before those behind it; a strided one
/// after so many of those behind it that they make its split_factor. Errors: Unsupported (they make
/// no such number).
Result<std::vector<std::size_t>> division_order(std::span<const AxisPlacement> placements,
                                                const DeviceMesh& mesh, std::size_t dim);

/// The rank's box of a tensor of that shape. `said`: the order that the file states, which counts
/// where all axes of a dimension are plain, and must agree with split factors otherwise. Requires:
/// one placement for each axis, of dimensions that the tensor has; a place in the mesh. Errors:
/// Unsupported (as division_order(); an order that is not of these axes).
Result<DeviceBox> box_of(std::span<const std::int64_t> shape,
                         std::span<const AxisPlacement> placements, const DeviceMesh& mesh,
                         std::span<const DivisionOrder> said);

/// Whether a rank before this one has the same box: it is not the first along an axis that
/// replicates.
bool is_replica(std::span<const AxisPlacement> placements, const DeviceMesh& mesh);

}  // namespace ckfs
