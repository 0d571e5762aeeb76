// A limit of work for a run of a fuzz target: what it asks the allocator for, all together, is in
// proportion to its input. Seconds would be those of a busy machine, and instructions are not
// counted everywhere; a walk that repeats itself copies something each time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <sanitizer/allocator_interface.h>

#include "base/error.h"

namespace ckfs {

/// From here to the end of the scope. `most` bytes are allowed whatever the input is, and `each`
/// for each of its bytes; an allocation counts as 64 bytes more than it asks for.
class WorkLimit {
 public:
  explicit WorkLimit(std::size_t input, std::uint64_t most = std::uint64_t{192} << 20,
                     std::uint64_t each = 2048)
      : limit_(most + each * input), before_(asked()) {}
  WorkLimit(const WorkLimit&) = delete;
  WorkLimit& operator=(const WorkLimit&) = delete;
  ~WorkLimit() { CKFS_CHECK(asked() - before_ <= limit_); }

 private:
  static inline std::atomic<std::uint64_t> sum{0};
  static std::uint64_t asked() {
    static const int installed = __sanitizer_install_malloc_and_free_hooks(
        [](const volatile void*, std::size_t size) {
          sum.fetch_add(size + 64, std::memory_order_relaxed);
        },
        [](const volatile void*) {});
    CKFS_CHECK(installed != 0);
    return sum.load(std::memory_order_relaxed);
  }

  const std::uint64_t limit_;
  const std::uint64_t before_;
};

}  // namespace ckfs
