// A hash whose values may be shown and stored: the same on every host and in every version.
#pragma once

#include <cstdint>
#include <string_view>

namespace ckfs {

inline constexpr std::uint64_t kHashSeed = 0xcbf29ce484222325;

/// 64-bit FNV-1a (Fowler, Noll, Vo). Feed text in pieces by passing the result on as `seed`. Not
/// for data that an adversary chooses: a caller that needs distinct values checks for collisions.
[[nodiscard]] constexpr std::uint64_t stable_hash(std::string_view text,
                                                  std::uint64_t seed = kHashSeed) {
  for (const char c : text) {
    seed ^= static_cast<unsigned char>(c);
    seed *= 0x100000001b3;
  }
  return seed;
}

/// A hash as an inode number: never 0 ("no inode") or 1 (the root of a mount), and below 2^62,
/// because overlayfs (xino) keeps its own mark in the upper bits of numbers.
[[nodiscard]] constexpr std::uint64_t inode_of_hash(std::uint64_t hash) {
  hash &= (std::uint64_t{1} << 62) - 1;
  return hash > 1 ? hash : hash + 2;
}

}  // namespace ckfs
