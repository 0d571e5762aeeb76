// Boxes are cut apart by planes that go through none of them, again and again. A grid, and whatever
// slicing slices makes, falls into single boxes so. What no plane divides (a pinwheel) is compared
// pair by pair; comparing all pairs would take hours for the million slices of a large mesh.
#include "source/box_overlap.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

namespace ckfs {
namespace {

using Numbers = std::span<std::uint32_t>;

bool overlap(const BoxView& a, const BoxView& b) {
  for (std::size_t d = 0; d < a.begin.size(); ++d) {
    if (a.begin[d] >= b.begin[d] + b.count[d] || b.begin[d] >= a.begin[d] + a.count[d]) {
      return false;
    }
  }
  return true;
}

/// Sorts boxes along a dimension, and gives the groups that planes across it divide them into.
std::vector<Numbers> cut(const std::function<BoxView(std::uint32_t)>& box, Numbers numbers,
                         std::size_t d) {
  std::ranges::sort(numbers, {}, [&](std::uint32_t i) { return box(i).begin[d]; });
  std::vector<Numbers> groups;
  std::size_t begin = 0;
  std::int64_t end = 0;  // of the boxes since `begin`
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const BoxView each = box(numbers[i]);
    if (i > begin && each.begin[d] >= end) {
      groups.push_back(numbers.subspan(begin, i - begin));
      begin = i;
      end = 0;
    }
    end = std::max(end, each.begin[d] + each.count[d]);
  }
  groups.push_back(numbers.subspan(begin));
  return groups;
}

}  // namespace

OverlapSearch find_overlap(std::size_t boxes, std::size_t rank,
                           const std::function<BoxView(std::uint32_t)>& box,
                           const std::function<bool(std::uint64_t)>& spend) {
  if (boxes < 2) return {};
  std::vector<std::uint32_t> order(boxes);
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  std::vector<Numbers> rest{order};
  std::vector<Numbers> groups;
  while (!rest.empty()) {
    const Numbers group = rest.back();
    rest.pop_back();
    groups.clear();
    for (std::size_t d = 0; d < rank && groups.size() < 2; ++d) {
      if (!spend(group.size() * std::bit_width(group.size()))) return {};
      groups = cut(box, group, d);
    }
    if (groups.size() > 1) {
      std::ranges::copy_if(groups, std::back_inserter(rest),
                           [](Numbers each) { return each.size() > 1; });
      continue;
    }
    if (group.size() > kMaxIrregular) return {std::nullopt, group.size()};
    std::ranges::sort(group);
    for (std::size_t j = 1; j < group.size(); ++j) {
      if (!spend(j * rank)) return {};
      for (std::size_t i = 0; i < j; ++i) {
        if (overlap(box(group[i]), box(group[j]))) return {std::pair(group[i], group[j])};
      }
    }
  }
  return {};
}

}  // namespace ckfs
