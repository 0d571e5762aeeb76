#include "tensor/shape.h"

#include <fmt/format.h>

namespace ckfs {

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace ckfs
