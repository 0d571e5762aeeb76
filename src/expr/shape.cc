// Shapes come from files and recipes, so their one check is here, with a limit that makes all later
// arithmetic on indices safe without further checks.
#include "expr/shape.h"

#include <fmt/format.h>

#include "base/checked.h"

namespace ckfs {
namespace {

// Far more than any file system holds, and so small that the sum of an index and a block, and the
// bits of a tensor of bytes, are still int64.
constexpr std::int64_t kMaxNumel = std::int64_t{1} << 59;

}  // namespace

std::vector<std::int64_t> row_major_strides(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d > 1; --d) strides[d - 2] = strides[d - 1] * shape[d - 1];
  return strides;
}

Result<std::int64_t> check_shape(DType dtype, std::span<const std::int64_t> shape) {
  const std::optional<std::int64_t> numel = checked_numel(shape);
  if (!numel || *numel > kMaxNumel) {
    return fail(ErrorCode::InvalidArgument, "shape {}: negative or more than {} elements",
                shape_text(shape), kMaxNumel);
  }
  if (!nbytes(dtype, *numel)) {
    const bool parts = bits(dtype) % 8 != 0;
    return fail(ErrorCode::InvalidArgument, "shape {}: {} elements of {} {}", shape_text(shape),
                *numel, name(dtype), parts ? "end within a byte" : "have 2^61 bytes or more");
  }
  return *numel;
}

Around around(std::span<const std::int64_t> shape, std::int64_t dim) {
  const auto d = static_cast<std::size_t>(dim);
  std::int64_t inner = 1;
  for (const std::int64_t extent : shape.subspan(d + 1)) inner *= extent;
  return {shape[d], inner, shape[d] * inner};
}

}  // namespace ckfs
