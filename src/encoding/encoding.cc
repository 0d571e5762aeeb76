#include "encoding/encoding.h"

#include <algorithm>

#include "base/checked.h"
#include "base/rounding.h"
#include "encoding/plain_encoding.h"

namespace ckfs {

std::span<const std::byte> PartBytes::at(std::uint32_t part, ByteRange range) const {
  const std::span<const Window> windows = parts_[part];
  const auto after = std::ranges::upper_bound(
      windows, range.begin, {}, [](const Window& window) { return window.range.begin; });
  CKFS_CHECK(after != windows.begin());
  const Window& window = *std::prev(after);
  CKFS_CHECK(window.range.contains(range));
  return {window.bytes + (range.begin - window.range.begin), range.size()};
}

std::optional<std::uint64_t> Encoding::nbytes(std::int64_t numel) const {
  if (numel < 0) return std::nullopt;
  const Granule one = granule();
  // Granules that are packed along a dimension come as whole blocks.
  const auto blocks = static_cast<std::uint64_t>(ceil_div(numel, one.block()));
  const auto bytes = checked_mul(one.bytes, static_cast<std::uint64_t>(one.stride));
  return bytes ? checked_mul(blocks, *bytes) : std::nullopt;
}

Exactness Encoding::exactness(DType to) const {
  return plain_encoding(dtype()).exactness(to);
}

}  // namespace ckfs
