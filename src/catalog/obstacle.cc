#include "catalog/obstacle.h"

#include <algorithm>
#include <tuple>

namespace ckfs {

std::size_t count_obstacles(const std::vector<Obstacle>& obstacles) {
  std::size_t count = 0;
  for (const Obstacle& obstacle : obstacles) count += 1 + obstacle.more;
  return count;
}

void ObstacleList::add(std::string_view tensor, std::string_view reason) {
  auto group = groups_.find(reason);
  if (group == groups_.end()) {
    const std::string_view key = groups_.size() < kReasons - 1 ? reason : std::string_view();
    group = groups_.try_emplace(std::string(key)).first;
  }
  if (group->second.count++ >= kTensors) {
    if (!group->first.empty()) group->second.unlisted.emplace_back(tensor);
    return;
  }
  group->second.listed.push_back({std::string(tensor), std::string(reason)});
}

std::span<const std::string> ObstacleList::unlisted(std::string_view reason) const {
  const auto group = groups_.find(reason);
  return group == groups_.end() ? std::span<const std::string>() : group->second.unlisted;
}

std::vector<Obstacle> ObstacleList::list() const {
  const auto by_tensor = [](const Obstacle& a, const Obstacle& b) {
    return std::tie(a.tensor, a.reason) < std::tie(b.tensor, b.reason);
  };
  std::vector<Obstacle> all;
  for (const auto& [reason, group] : groups_) {
    std::vector<Obstacle> listed = group.listed;
    std::ranges::sort(listed, by_tensor);
    listed.back().more = group.count - listed.size();
    all.insert(all.end(), listed.begin(), listed.end());
  }
  std::ranges::sort(all, by_tensor);
  return all;
}

}  // namespace ckfs
