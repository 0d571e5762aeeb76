// Sizes as people write them: 4_KiB, 1_MiB; and the kernel's page.
#pragma once

#include <cstdint>

namespace ckfs {

constexpr std::uint64_t operator""_KiB(unsigned long long n) {
  return n << 10;
}
constexpr std::uint64_t operator""_MiB(unsigned long long n) {
  return n << 20;
}
constexpr std::uint64_t operator""_GiB(unsigned long long n) {
  return n << 30;
}

/// Bytes of a page of the page cache, on nearly all kernels.
inline constexpr std::uint64_t kPage = 4096;

}  // namespace ckfs
