// How MaxText shares an array among the devices of a mesh: by the logical axes of its dimensions,
// and one table that names the axes of the mesh that cut each logical axis (base.yml,
// logical_axis_rules).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace ckfs {

/// Sizes of the axes of a mesh that cut parameters; all others have one device.
struct Mesh {
  std::int64_t fsdp = 1;
  std::int64_t expert = 1;
  std::int64_t tensor = 1;

  bool is_one_device() const { return fsdp == 1 && expert == 1 && tensor == 1; }
};

/// Into how many equal parts each dimension is cut. `axes`: a logical name for each dimension,
/// empty where none is known; names that are not in the table are not cut. Requires: as many axes
/// as dimensions. Errors: Unsupported (a dimension that the mesh does not divide, as JAX refuses
/// it; overflow).
Result<std::vector<std::int64_t>> parts_of(std::span<const std::string> axes,
                                           std::span<const std::int64_t> shape, const Mesh& mesh);

}  // namespace ckfs
