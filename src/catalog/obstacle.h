// Why tensors cannot be shown as numbers: a checkpoint in a quantization that ckfs cannot decode
// has tens of thousands of such tensors and one reason, which is kept once; of most of them only
// the name is kept.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ckfs {

/// Why a tensor cannot be shown as numbers: an unknown quantization, a scale of an odd shape. Views
/// that need the tensor are absent; `source` is not.
struct Obstacle {
  std::string tensor;
  std::string reason;
  /// How many further tensors of its group (as ObstacleList has them) are not listed; with the last
  /// that is.
  std::size_t more = 0;
};

/// How many obstacles there are, those that are not listed included.
std::size_t count_obstacles(const std::vector<Obstacle>& obstacles);

/// Collects obstacles: the first few tensors of each reason are listed, the others are counted, and
/// their names kept apart. From the hundredth reason on all are one group: a few of its tensors are
/// listed, each with its own reason, the others are counted whatever theirs, and have no names.
class ObstacleList {
 public:
  static constexpr std::size_t kTensors = 5;  // of each reason
  static constexpr std::size_t kReasons = 100;

  void add(std::string_view tensor, std::string_view reason);
  /// All that were added, by tensor.
  std::vector<Obstacle> list() const;
  /// The tensors of that reason that are counted and not listed, in the order added.
  std::span<const std::string> unlisted(std::string_view reason) const;

 private:
  struct Group {
    std::vector<Obstacle> listed;  // in the order added
    std::size_t count = 0;
    std::vector<std::string> unlisted;
  };
  std::map<std::string, Group, std::less<>> groups_;  // by reason; "": of all others
};

}  // namespace ckfs
