#include "encoding/quantizer.h"

#include <algorithm>

#include "base/rounding.h"

namespace ckfs {

ElementRange Quantizer::elements_of(std::size_t output, ByteRange bytes) const {
  const Unit each = unit(output);
  if (each.elements == 0 || bytes.empty()) return {0, 0};
  const auto first = static_cast<std::int64_t>(bytes.begin / each.bytes);
  const auto last = static_cast<std::int64_t>(ceil_div(bytes.end, each.bytes));
  // The last unit may have fewer elements, and its product may be too large.
  const std::int64_t units = ceil_div(numel(), each.elements);
  const std::int64_t end = last >= units ? numel() : last * each.elements;
  return {first * each.elements, end - first * each.elements};
}

ByteRange Quantizer::bytes_of(std::size_t output, ElementRange elements) const {
  const Unit each = unit(output);
  const std::uint64_t all = outputs()[output].nbytes;
  if (each.elements == 0) return {0, all};
  const auto first = static_cast<std::uint64_t>(elements.first / each.elements);
  const auto last = static_cast<std::uint64_t>(ceil_div(elements.end(), each.elements));
  return {first * each.bytes, std::min(all, last * each.bytes)};
}

}  // namespace ckfs
