// What heap_meter.h counts, for the files of a program that do not define malloc() themselves.
#pragma once

#include <atomic>
#include <cstddef>

namespace ckfs::heap_meter {

inline std::atomic<std::size_t> now{0};
inline std::atomic<std::size_t> peak{0};
inline std::atomic<std::size_t> all{0};  // that was ever asked for

inline void add(std::size_t size) {
  all += size;
  const std::size_t total = now += size;
  std::size_t highest = peak;
  // Below zero, too: ThreadSanitizer counts what is freed of aligned_alloc(), not what is given.
  while (static_cast<std::ptrdiff_t>(total - highest) > 0 &&
         !peak.compare_exchange_weak(highest, total)) {
  }
}

/// The most memory that was held at once since it was made, beyond what was held then.
class Span {
 public:
  Span() : before_(now), all_before_(all) { peak = before_; }
  std::size_t most() const { return peak - before_; }
  /// All that was asked for since, given back or not: every copy counts.
  std::size_t sum() const { return all - all_before_; }

 private:
  std::size_t before_, all_before_;
};

}  // namespace ckfs::heap_meter
