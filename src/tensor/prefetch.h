// For kernels that read a long run of elements from memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ckfs {

/// Asks for the cache line one page behind `in`, because a processor's own prefetching ends with
/// the page. Behind the last element it reads for nothing, and where nothing is mapped not at all.
inline void prefetch_next_page(const std::byte* in) {
  constexpr std::uintptr_t kPageBytes = 4096;
  const std::uintptr_t next = reinterpret_cast<std::uintptr_t>(in) + kPageBytes;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the address may lie outside of any object
  __builtin_prefetch(reinterpret_cast<const void*>(next));
}

}  // namespace ckfs
