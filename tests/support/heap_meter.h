// Counts all memory of a program that comes from new: what a parser asks for, however many threads
// it uses and whatever the allocator makes of it. It defines operator new: include it in one file
// of a program.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <malloc.h>
#include <new>

#include "support/heap_counters.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CKFS_SANITIZER_COUNTS 1
#include <sanitizer/allocator_interface.h>
#endif
#endif

#ifdef CKFS_SANITIZER_COUNTS
namespace ckfs::heap_meter {

inline const int hooked = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, std::size_t size) { add(size); },
    [](const volatile void* memory) { now -= __sanitizer_get_allocated_size(memory); });

}  // namespace ckfs::heap_meter
#else
void* operator new(std::size_t size) {
  void* memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  ckfs::heap_meter::add(malloc_usable_size(memory));
  return memory;
}
// libstdc++'s own calls the one above; a sanitizer's would not.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory) noexcept {
  ckfs::heap_meter::now -= malloc_usable_size(memory);
  std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  operator delete(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}
#endif
