// Division that rounds the way a name says, and sizes rounded up. Requires, throughout: divisors
// are positive.
#pragma once

#include <concepts>
#include <cstddef>

namespace ckfs {

/// The largest integer that is not above a / b.
template <std::integral T>
[[nodiscard]] constexpr T floor_div(T a, T b) {
  if constexpr (std::signed_integral<T>) return a / b - (a % b < 0 ? 1 : 0);
  return a / b;
}

/// The least integer that is not below a / b.
template <std::integral T>
[[nodiscard]] constexpr T ceil_div(T a, T b) {
  return a / b + (a % b > 0 ? 1 : 0);
}

/// The least multiple of `unit` that is not below `value`. Requires: it is a T.
template <std::integral T>
[[nodiscard]] constexpr T round_up(T value, T unit) {
  return ceil_div(value, unit) * unit;
}

/// round_up to what buffers and their parts are aligned to: a cache line, and as much as any
/// element or vector wants.
inline constexpr std::size_t kBufferAlignment = 64;
[[nodiscard]] constexpr std::size_t aligned(std::size_t size) {
  return round_up(size, kBufferAlignment);
}

}  // namespace ckfs
