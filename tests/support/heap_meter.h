// Counts all memory of a program that comes from the heap: what a parser asks for, however many
// threads it uses and whatever the allocator makes of it. It defines malloc() and what goes with
// it: include it in one file of a program.
#pragma once

#include <cerrno>
#include <cstddef>
#include <malloc.h>

#include "support/heap_counters.h"
#include "support/sanitized.h"

#if CKFS_SANITIZED
#include <sanitizer/allocator_interface.h>

namespace ckfs::heap_meter {

inline const int hooked = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t size) { add(size); },
    [](const volatile void* memory) { now -= __sanitizer_get_allocated_size(memory); });

}  // namespace ckfs::heap_meter
#else
extern "C" {
// glibc's own, for those who replace them.
// NOLINTBEGIN(bugprone-reserved-identifier)
void* __libc_malloc(std::size_t size) noexcept;
void* __libc_calloc(std::size_t count, std::size_t size) noexcept;
void* __libc_realloc(void* memory, std::size_t size) noexcept;
void* __libc_memalign(std::size_t alignment, std::size_t size) noexcept;
void __libc_free(void* memory) noexcept;
// NOLINTEND(bugprone-reserved-identifier)
}

namespace ckfs::heap_meter {

inline void* counted(void* memory) {
  if (memory != nullptr) add(malloc_usable_size(memory));
  return memory;
}

}  // namespace ckfs::heap_meter

extern "C" {

void* malloc(std::size_t size) noexcept {
  return ckfs::heap_meter::counted(__libc_malloc(size));
}
void* calloc(std::size_t count, std::size_t size) noexcept {
  return ckfs::heap_meter::counted(__libc_calloc(count, size));
}
void* realloc(void* memory, std::size_t size) noexcept {
  const std::size_t before = memory == nullptr ? 0 : malloc_usable_size(memory);
  void* const moved = __libc_realloc(memory, size);
  if (moved == nullptr && size != 0) return nullptr;
  ckfs::heap_meter::now -= before;
  return ckfs::heap_meter::counted(moved);
}
void* memalign(std::size_t alignment, std::size_t size) noexcept {
  return ckfs::heap_meter::counted(__libc_memalign(alignment, size));
}
void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  return memalign(alignment, size);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) noexcept {
  void* const made = memalign(alignment, size);
  if (made == nullptr) return ENOMEM;
  *memory = made;
  return 0;
}
void free(void* memory) noexcept {
  if (memory != nullptr) ckfs::heap_meter::now -= malloc_usable_size(memory);
  __libc_free(memory);
}

}  // extern "C"
#endif
