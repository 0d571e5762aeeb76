// torch combines the hashes of the names in the order in which it walks a set of strings, so its id
// is a property of the library that it was linked with: libstdc++, in all of its releases. What
// that does is written out here, because the bytes of a view must not depend on the library that
// ckfs is linked with. The hash is MurmurHash64A with a seed of its own; the set is a chain of all
// nodes in which those of one bucket are neighbours, a new node is the first of its bucket, and a
// new bucket the first of all.
#include "format/torch_serialization_id.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace ckfs::torch_zip {
namespace {

constexpr std::uint64_t kSeed = 0xc70f6907;
constexpr std::uint64_t kMultiplier = 0xc6a4a7935bd1e995;

/// Buckets of a set that grows one by one: each count is used until there are as many elements.
constexpr std::array<std::size_t, 23> kBucketCounts = {
    13,      29,      59,      127,      257,      541,      1109,     2357,
    5087,    10273,   20753,   42043,    85229,    172933,   351061,   712697,
    1447153, 2938679, 5967347, 12117689, 24607243, 49969847, 101473717};

constexpr std::uint64_t mix(std::uint64_t value) {
  return value ^ (value >> 47);
}

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = kSeed ^ (text.size() * kMultiplier);
  const auto add = [&](std::uint64_t word) { hash = (hash ^ word) * kMultiplier; };
  while (text.size() >= sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), sizeof word);
    add(mix(word * kMultiplier) * kMultiplier);
    text.remove_prefix(sizeof word);
  }
  if (!text.empty()) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), text.size());
    add(word);
  }
  return mix(mix(hash) * kMultiplier);
}

}  // namespace

void NameSetHash::add(std::string_view name) {
  const std::uint64_t hash = hash_of(name);
  if (!before_.empty()) {
    const std::size_t bucket = hash % before_.size();
    for (std::uint32_t before = before_[bucket]; before != kNone;) {
      const std::uint32_t node = nodes_[before].next;
      if (node == kNone || bucket_of(node) != bucket) break;
      if (nodes_[node].hash == hash) return;
      before = node;
    }
  }
  if (nodes_.size() > before_.size()) grow();
  nodes_.push_back({hash, kNone});
  link(static_cast<std::uint32_t>(nodes_.size() - 1));
}

void NameSetHash::link(std::uint32_t node) {
  const std::size_t bucket = bucket_of(node);
  if (before_[bucket] != kNone) {
    nodes_[node].next = nodes_[before_[bucket]].next;
    nodes_[before_[bucket]].next = node;
    return;
  }
  const std::uint32_t first = nodes_[0].next;
  nodes_[node].next = first;
  nodes_[0].next = node;
  if (first != kNone) before_[bucket_of(first)] = node;
  before_[bucket] = 0;
}

void NameSetHash::grow() {
  const auto* const count =
      std::upper_bound(kBucketCounts.begin(), kBucketCounts.end(), before_.size());
  if (count == kBucketCounts.end()) return;  // chains get longer, and no archive is that large
  before_.assign(*count, kNone);
  std::uint32_t node = std::exchange(nodes_[0].next, kNone);
  while (node != kNone) {
    const std::uint32_t next = nodes_[node].next;
    link(node);
    node = next;
  }
}

std::uint64_t NameSetHash::value() const {
  std::uint64_t hash = 0;
  for (std::uint32_t node = nodes_[0].next; node != kNone; node = nodes_[node].next) {
    hash = combine(hash, nodes_[node].hash);
  }
  return hash;
}

}  // namespace ckfs::torch_zip
