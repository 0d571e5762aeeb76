// A binary search for a caller that knows about where the result is. It costs the logarithm of the
// distance, not of the length, and looks at nearby items only.
#pragma once

#include <cstddef>

namespace ckfs {

/// The first of `count` items that is not before the wanted one; `count` if there is none.
/// Requires: `is_before(i)` is true up to some index and false from there on. `near`: a guess of
/// the result; from `count` on it is ignored, and the cost is the logarithm of the length.
template <typename IsBefore>
std::size_t gallop(std::size_t count, std::size_t near, IsBefore is_before) {
  std::size_t low = 0, high = count;  // the result is one of low to high
  std::size_t step = 1;
  if (near < count && is_before(near)) {
    for (low = near + 1; step < high - low; step *= 2) {
      if (!is_before(low + step)) {
        high = low + step;
        break;
      }
      low += step + 1;
    }
  } else if (near < count) {
    for (high = near; step <= high - low; step *= 2) {
      if (is_before(high - step)) {
        low = high - step + 1;
        break;
      }
      high -= step;
    }
  }
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (is_before(middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace ckfs
