// Whether slices of one tensor overlap: what a rank wrote is believed only if no other rank wrote
// the same element. Together with the sum of their elements it also says that no element is absent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>

namespace ckfs {

/// Elements begin[d] to begin[d] + count[d] - 1 in each dimension d. The sums fit in 63 bits, and
/// no count is 0.
struct BoxView {
  std::span<const std::int64_t> begin, count;
};

struct OverlapSearch {
  /// Two boxes that share an element, by number, the lower first. Nullopt: there are none, or the
  /// search was given up.
  std::optional<std::pair<std::uint32_t, std::uint32_t>> found;
  /// Boxes between which no plane goes, and more than are compared pair by pair (kMaxIrregular); 0:
  /// all were compared.
  std::size_t irregular = 0;
};

inline constexpr std::size_t kMaxIrregular = 4096;

/// Looks for two of the boxes box(0) to box(boxes - 1) that overlap, all of `rank` dimensions.
/// Slices of slices take little more than the time of sorting them, at 4 bytes a box. `spend` is
/// asked before each step for its work, in comparisons; where it says no, the search is given up
/// and finds nothing.
OverlapSearch find_overlap(std::size_t boxes, std::size_t rank,
                           const std::function<BoxView(std::uint32_t)>& box,
                           const std::function<bool(std::uint64_t)>& spend);

}  // namespace ckfs
