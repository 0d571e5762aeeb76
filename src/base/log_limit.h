// How often one cause may write to the log. Ten thousand readers that keep asking for an unreadable
// file must neither fill a disk nor bury the first line of another cause. And an operator who looks
// after a week must still see that the cause persists.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/mutex.h"

namespace ckfs {

/// Admits the first line of each cause at once, then at most one a minute for as long as it lasts.
/// Memory is bounded: of very many causes within a minute, the latest share one allowance, and only
/// the first line of these is written. They also have the counts of causes that made room, and one
/// that gets an allowance of its own afterwards may be written again within the minute. Safe for
/// concurrent use by several threads.
class LogLimit {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::minutes kInterval{1};
  static constexpr std::size_t kMostCauses = 512;
  /// Longer causes are cut: those that differ only behind this share an allowance.
  static constexpr std::size_t kLongestCause = 256;

  /// `now` is for tests. Of `most_causes` each has an allowance of its own.
  explicit LogLimit(std::function<Clock::time_point()> now = Clock::now,
                    std::size_t most_causes = kMostCauses)
      : now_(std::move(now)), most_causes_(most_causes) {}

  /// Whether a line about `cause` may be written now: how many were suppressed since the one
  /// before, or nullopt.
  std::optional<std::uint64_t> admit(std::string_view cause);

 private:
  struct State {
    std::optional<Clock::time_point> last;
    std::uint64_t suppressed = 0;
  };
  State& state_of(std::string_view cause, Clock::time_point now) CKFS_REQUIRES(mutex_);

  const std::function<Clock::time_point()> now_;
  const std::size_t most_causes_;
  Mutex mutex_;
  std::map<std::string, State, std::less<>> causes_ CKFS_GUARDED_BY(mutex_);
  State others_ CKFS_GUARDED_BY(mutex_);  // of the causes that found no room
};

/// A line's note on the lines suppressed before it: empty, or with a blank in front.
std::string suppressed_note(std::uint64_t suppressed);

}  // namespace ckfs
