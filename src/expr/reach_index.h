// Finds which of many intervals, sorted by their begins, meet a range, without a look at the
// others. A tree of maxima of the intervals' ends, 16 children a node, a vector for each level: a
// fifteenth of the memory of a list of ends, and one interval that reaches far does not make all
// after it be visited. Up to 16 intervals, which most tensors have, are their own node.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ckfs {

class ReachIndex {
 public:
  ReachIndex() = default;
  /// `last(i)` is the last index of interval i of `count`.
  template <typename Last>
  ReachIndex(std::size_t count, Last last) {
    if (count <= kFan) return;
    Level level;
    for (std::size_t i = 0; i < count; i += kFan) {
      std::int64_t most = last(i);
      for (std::size_t k = i + 1; k < std::min(count, i + kFan); ++k) {
        most = std::max(most, last(k));
      }
      level.push_back(most);
    }
    level.shrink_to_fit();
    levels_.push_back(std::move(level));
    while (levels_.back().size() > 1) {
      const std::vector<std::int64_t>& below = levels_.back();
      std::vector<std::int64_t> above;
      for (std::size_t i = 0; i < below.size(); i += kFan) {
        const auto first = below.begin() + static_cast<std::ptrdiff_t>(i);
        const auto end =
            below.begin() + static_cast<std::ptrdiff_t>(std::min(below.size(), i + kFan));
        above.push_back(*std::max_element(first, end));
      }
      above.shrink_to_fit();
      levels_.push_back(std::move(above));
    }
    levels_.shrink_to_fit();
  }

  /// Calls use(i), in order, for every interval i < `count` that may reach `begin`: all that do,
  /// and at most 15 others beside each and at the end; all of 16 or fewer. Gives how many nodes
  /// and intervals it looked at. Requires: `count` is at most that of the constructor.
  template <typename Use>
  std::size_t for_each(std::int64_t begin, std::size_t count, Use use) const {
    if (count == 0) return 0;
    if (levels_.empty()) {
      for (std::size_t i = 0; i < count; ++i) use(i);
      return count;
    }
    return visit(levels_.size() - 1, 0, begin, count, use);
  }

  /// The memory that it keeps beside itself.
  std::size_t bytes() const {
    std::size_t bytes = levels_.capacity() * sizeof(Level);
    for (const Level& level : levels_) bytes += level.capacity() * sizeof(Level::value_type);
    return bytes;
  }

 private:
  static constexpr std::size_t kFan = 16;
  using Level = std::vector<std::int64_t>;

  template <typename Use>
  std::size_t visit(std::size_t level, std::size_t node, std::int64_t begin, std::size_t count,
                    Use& use) const {
    if (levels_[level][node] < begin) return 1;
    std::size_t visited = 1;
    std::size_t below = level == 0 ? count : levels_[level - 1].size();
    below = std::min(below, (node + 1) * kFan);
    for (std::size_t child = node * kFan; child < below; ++child) {
      if (level == 0) {
        use(child);
        ++visited;
      } else if (first_of(level - 1, child) < count) {
        visited += visit(level - 1, child, begin, count, use);
      }
    }
    return visited;
  }

  /// The first interval below a node.
  static std::size_t first_of(std::size_t level, std::size_t node) {
    for (std::size_t k = 0; k <= level; ++k) node *= kFan;
    return node;
  }

  std::vector<Level> levels_;  // levels_[0]: maxima of 16 intervals each
};

}  // namespace ckfs
