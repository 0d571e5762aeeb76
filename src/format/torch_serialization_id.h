// The id that torch.save writes into an archive, from the names of its members.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace ckfs::torch_zip {

/// A hash of distinct names in the order that torch's set of strings is walked in, to which
/// members are added one by one.
class NameSetHash {
 public:
  /// Adds a name; one that is there already changes nothing.
  void add(std::string_view name);

  std::uint64_t value() const;

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  struct Node {
    std::uint64_t hash = 0;
    std::uint32_t next = kNone;
  };
  std::size_t bucket_of(std::uint32_t node) const { return nodes_[node].hash % before_.size(); }
  void link(std::uint32_t node);
  void grow();

  // nodes_[0] comes before the first; `before_` has, for each bucket, the node before its first.
  std::vector<Node> nodes_{Node{}};
  std::vector<std::uint32_t> before_;
};

/// c10's hash_combine.
constexpr std::uint64_t combine(std::uint64_t seed, std::uint64_t value) {
  return seed ^ (value + 0x9e3779b9 + (seed << 6) + (seed >> 2));
}

}  // namespace ckfs::torch_zip
