// Counts all memory of a program that comes from new: what a parser asks for, however many threads
// it uses and whatever the allocator makes of it. It defines operator new: include it in one file
// of a program.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <malloc.h>
#include <new>

namespace ckfs::heap_meter {

inline std::atomic<std::size_t> now{0};
inline std::atomic<std::size_t> peak{0};

inline void* count_allocation(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const std::size_t total = now += malloc_usable_size(memory);
  std::size_t highest = peak;
  while (total > highest && !peak.compare_exchange_weak(highest, total)) {
  }
  return memory;
}

inline void count_release(void* memory) {
  now -= malloc_usable_size(memory);
  std::free(memory);
}

/// The most memory that was held at once since it was made, beyond what was held then.
class Span {
 public:
  Span() : before_(now) { peak = before_; }
  std::size_t most() const { return peak - before_; }

 private:
  std::size_t before_;
};

}  // namespace ckfs::heap_meter

void* operator new(std::size_t size) {
  return ckfs::heap_meter::count_allocation(std::malloc(size));
}
// libstdc++'s own calls the one above; a sanitizer's would not.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  ckfs::heap_meter::count_release(memory);
}
void operator delete(void* memory) noexcept {
  ckfs::heap_meter::count_release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  ckfs::heap_meter::count_release(memory);
}
