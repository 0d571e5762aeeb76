// A binary search for who knows about where: it costs the logarithm of the distance, not of the
// length, and looks at what lies near.
#pragma once

#include <cstddef>

namespace ckfs {

/// The first of `count` items that is not before what is looked for; `count`: there is none.
/// `is_before(i)` is true for the items up to some place and false from there on. `near`: any
/// number; from `count` on it says nothing, and the length counts.
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
