// Lets allocations of C++ fail, one after another: whatever is half done when memory ends must be
// usable, or gone. It defines operator new and delete: include it in one file of a program.
// ThreadSanitizer has its own and links with no other: tests are skipped there.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

#define CKFS_FAILING_HEAP 1
#if defined(__SANITIZE_THREAD__)
#undef CKFS_FAILING_HEAP
#define CKFS_FAILING_HEAP 0
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#undef CKFS_FAILING_HEAP
#define CKFS_FAILING_HEAP 0
#endif
#endif

/// The first line of a test that lets allocations fail.
#define CKFS_NEEDS_FAILING_HEAP() \
  if (CKFS_FAILING_HEAP == 0) GTEST_SKIP() << "ThreadSanitizer has an operator new of its own"

namespace ckfs::failing_heap {

/// Allocations of this thread until the one that fails; negative: none does.
inline thread_local long left = -1;
inline thread_local bool once = false;  // those behind it have memory again
inline thread_local bool failed = false;

inline void* take(std::size_t size) {
  if (left == 0) {
    failed = true;
    if (once) left = -1;
    return nullptr;
  }
  if (left > 0) --left;
  return std::malloc(size == 0 ? 1 : size);
}

inline void* take_or_throw(std::size_t size) {
  if (void* const memory = take(size)) return memory;
  throw std::bad_alloc();
}

/// Calls use() with its first allocation failing, then with its second, ..., and check() after
/// each, until use() needs no more; all that again with every later allocation failing, too. Where
/// they are too many, each `step`th. How many there are.
template <typename Use, typename Check>
long fail_each(Use use, Check check, long step = 1) {
  long given = 0;
  for (const bool one : {true, false}) {
    once = one;
    for (given = 0;; given += step) {
      left = given;
      failed = false;
      try {
        use();
      } catch (const std::bad_alloc&) {
        // Or use() has made an error of it.
      }
      left = -1;
      check();
      if (!failed) break;
    }
  }
  return given;
}

}  // namespace ckfs::failing_heap

#if CKFS_FAILING_HEAP
// Not inlined: GCC would see free() of what operator new gave.
[[gnu::noinline]] void* operator new(std::size_t size) {
  return ckfs::failing_heap::take_or_throw(size);
}
[[gnu::noinline]] void* operator new[](std::size_t size) {
  return ckfs::failing_heap::take_or_throw(size);
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return ckfs::failing_heap::take(size);
}
[[gnu::noinline]] void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return ckfs::failing_heap::take(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
#endif
