// A hash for tables whose keys come from a file. An attacker who knows the hash can name a hundred
// thousand tensors so that all fall into one bucket, where finding each takes a walk along all. So
// the hash has a key, which the process draws at the first use. Its values mean nothing outside of
// this process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace ckfs {

/// SipHash-1-3 (Aumasson, Bernstein). Not a hash of libxxhash: those promise nothing against an
/// adversary that chooses the keys.
[[nodiscard]] std::uint64_t sip_hash(std::string_view text, std::array<std::uint64_t, 2> key);

struct NameHash {
  using is_transparent = void;
  [[nodiscard]] std::size_t operator()(std::string_view name) const;
};

/// By name; found by any string.
template <typename Value>
using NameMap = std::unordered_map<std::string, Value, NameHash, std::equal_to<>>;

}  // namespace ckfs
