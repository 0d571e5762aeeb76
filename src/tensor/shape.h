// Shapes as people read them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace ckfs {

/// "[2, 3]".
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace ckfs
