// The cost that reading an untrusted document may have: steps, and bytes of results, both in
// proportion to the document's own bytes. A few bytes can ask for any amount of work where parts of
// a document are shared: a list of a thousand references to one list of a thousand numbers. So code
// that follows a reference, looks at a text or copies something pays for it first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace ckfs {

/// Steps: an element that is looked at is one, a text one for each 4 bytes. Real documents need
/// up to one step for each byte.
inline constexpr std::uint64_t kWorkBase = std::uint64_t{1} << 23;
inline constexpr std::uint64_t kWorkFactor = 16;
/// Bytes of names, shapes and tables that are made of the document. Real ones need up to five
/// times their bytes.
inline constexpr std::uint64_t kHoldBase = std::uint64_t{16} << 20;
inline constexpr std::uint64_t kHoldFactor = 12;

/// Safe for concurrent use; each concurrent thread may be granted one request beyond the budget.
/// After a refusal every request is refused. So a refused caller may give an empty answer, and the
/// reader of the document must call check() before it uses the result.
class WorkBudget {
 public:
  /// Of a document of that many bytes.
  explicit WorkBudget(std::uint64_t document)
      : most_steps_(kWorkBase + kWorkFactor * document),
        most_bytes_(kHoldBase + kHoldFactor * document) {}

  /// Pays for looking at so many elements; false: not granted.
  bool spend(std::uint64_t steps) { return take(steps_, steps, most_steps_); }
  /// The same for a text of so many bytes.
  bool spend_text(std::size_t bytes) { return spend(1 + bytes / 4); }
  /// Pays for keeping so many bytes; they are never given back.
  bool hold(std::uint64_t bytes) { return take(bytes_, bytes, most_bytes_); }

  bool exhausted() const { return exhausted_.load(std::memory_order_relaxed); }
  /// Corrupt, with `name` before it, where something was not granted.
  Result<void> check(std::string_view name) const {
    if (!exhausted()) return {};
    return fail(ErrorCode::Corrupt,
                "{}: its parts refer to each other so often that reading it needs more than {} "
                "steps or {} bytes",
                name, most_steps_, most_bytes_);
  }

  std::uint64_t steps() const { return steps_.load(std::memory_order_relaxed); }
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  bool take(std::atomic<std::uint64_t>& meter, std::uint64_t wanted, std::uint64_t most) {
    // No sum overflows: refused amounts are not added, and no document has 2^59 bytes.
    const std::uint64_t before = meter.load(std::memory_order_relaxed);
    if (exhausted() || wanted > most || before > most - wanted) {
      exhausted_.store(true, std::memory_order_relaxed);
      return false;
    }
    meter.fetch_add(wanted, std::memory_order_relaxed);
    return true;
  }

  std::uint64_t most_steps_, most_bytes_;
  std::atomic<std::uint64_t> steps_{0}, bytes_{0};
  std::atomic<bool> exhausted_{false};
};

}  // namespace ckfs
