// Little-endian integers in file bytes, at any alignment.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <span>

namespace ckfs {

static_assert(std::endian::native == std::endian::little,
              "ckfs moves tensor bytes between files and memory unchanged");

/// The T in the first sizeof(T) bytes. Requires: bytes.size() >= sizeof(T).
template <typename T>
  requires std::integral<T> || std::floating_point<T>
[[nodiscard]] inline T load_le(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

/// Requires: bytes.size() >= sizeof(T).
template <typename T>
  requires std::integral<T> || std::floating_point<T>
inline void store_le(std::span<std::byte> bytes, T value) {
  std::memcpy(bytes.data(), &value, sizeof(T));
}

}  // namespace ckfs
