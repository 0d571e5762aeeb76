// Arithmetic on numbers that come from a file. Each function gives nullopt instead of a wrapped
// result; the caller knows the thing to name in its error.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>

namespace ckfs {

template <std::integral T>
[[nodiscard]] constexpr std::optional<T> checked_add(T a, T b) {
  T sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

template <std::integral T>
[[nodiscard]] constexpr std::optional<T> checked_mul(T a, T b) {
  T product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// `value` as a To, or nullopt where To cannot hold it.
template <std::integral To, std::integral From>
[[nodiscard]] constexpr std::optional<To> checked_cast(From value) {
  if (!std::in_range<To>(value)) return std::nullopt;
  return static_cast<To>(value);
}

/// The number of elements of a shape, or nullopt if it is negative somewhere or exceeds int64.
[[nodiscard]] constexpr std::optional<std::int64_t> checked_numel(
    std::span<const std::int64_t> shape) {
  // A zero anywhere makes the product zero, however large the rest; so look for it first.
  bool zero = false;
  for (std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    zero = zero || extent == 0;
  }
  if (zero) return 0;
  std::int64_t numel = 1;
  for (std::int64_t extent : shape) {
    const auto product = checked_mul(numel, extent);
    if (!product) return std::nullopt;
    numel = *product;
  }
  return numel;
}

}  // namespace ckfs
