// FSDP over tensor parallelism is why axes do not divide in the order of the mesh: tensor
// parallelism, the later axis, cuts first, and FSDP cuts what each of its ranks has. torch writes
// that as a strided shard, whose split_factor says how many pieces were there before.
#include "source/torch/device_mesh.h"

#include <algorithm>

#include "base/checked.h"

namespace ckfs {
namespace {

/// Divides [begin, begin + count) as torch.chunk() does, and takes a piece.
void take_chunk(std::int64_t pieces, std::int64_t place, std::int64_t& begin, std::int64_t& count) {
  const std::int64_t each = count / pieces + (count % pieces == 0 ? 0 : 1);
  // place * each may be more than any tensor has, where most pieces are empty.
  const std::int64_t before = each == 0 || place > count / each ? count : place * each;
  begin += before;
  count = std::min(each, count - before);
}

bool divides(const AxisPlacement& placement, std::size_t dim) {
  return placement.kind != AxisPlacement::Kind::Replicate && placement.dim == dim;
}

}  // namespace

Result<std::vector<std::size_t>> division_order(std::span<const AxisPlacement> placements,
                                                const DeviceMesh& mesh, std::size_t dim) {
  std::vector<std::size_t> order;  // of the axes behind `axis`
  for (std::size_t axis = placements.size(); axis-- > 0;) {
    const AxisPlacement& placement = placements[axis];
    if (!divides(placement, dim)) continue;
    if (placement.kind == AxisPlacement::Kind::Shard) {
      order.insert(order.begin(), axis);
      continue;
    }
    std::size_t before = 0;
    std::optional<std::int64_t> pieces = 1;
    while (pieces && *pieces != placement.split_factor && before < order.size()) {
      pieces = checked_mul(*pieces, mesh.shape[order[before++]]);
    }
    if (pieces != placement.split_factor) {
      return fail(ErrorCode::Unsupported,
                  "a strided shard along axis {} of the mesh [{}] with split_factor {}, which the "
                  "axes behind it do not make",
                  axis, fmt::join(mesh.shape, ", "), placement.split_factor);
    }
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(before), axis);
  }
  return order;
}

Result<DeviceBox> box_of(std::span<const std::int64_t> shape,
                         std::span<const AxisPlacement> placements, const DeviceMesh& mesh,
                         std::span<const DivisionOrder> said) {
  DeviceBox box{std::vector<std::int64_t>(shape.size()), {shape.begin(), shape.end()}};
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    CKFS_TRY(std::vector<std::size_t> order, division_order(placements, mesh, dim));
    const auto stated = std::ranges::find(said, dim, &DivisionOrder::dim);
    if (stated != said.end() && stated->axes != order) {
      const bool is_strided = std::ranges::any_of(order, [&](std::size_t axis) {
        return placements[axis].kind == AxisPlacement::Kind::StridedShard;
      });
      if (is_strided || !std::ranges::is_permutation(stated->axes, order)) {
        return fail(ErrorCode::Unsupported,
                    "its shard_order says that axes [{}] of the mesh divide dimension {}, its "
                    "placements say [{}]",
                    fmt::join(stated->axes, ", "), dim, fmt::join(order, ", "));
      }
      order = stated->axes;
    }
    for (const std::size_t axis : order) {
      take_chunk(mesh.shape[axis], mesh.place[axis], box.begin[dim], box.count[dim]);
    }
  }
  return box;
}

bool is_replica(std::span<const AxisPlacement> placements, const DeviceMesh& mesh) {
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].kind == AxisPlacement::Kind::Replicate && mesh.place[axis] > 0) {
      return true;
    }
  }
  return false;
}

}  // namespace ckfs
