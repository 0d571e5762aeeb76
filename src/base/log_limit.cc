#include "base/log_limit.h"

#include <fmt/format.h>
#include <utility>

namespace ckfs {

LogLimit::State& LogLimit::state_of(std::string_view cause, Clock::time_point now) {
  cause = cause.substr(0, kLongestCause);
  if (const auto at = causes_.find(cause); at != causes_.end()) return at->second;
  if (causes_.size() >= most_causes_) {
    // A cause whose time is over would be admitted again anyway.
    const auto is_over = [&](const State& state) { return now - *state.last >= kInterval; };
    std::erase_if(causes_, [&](const auto& known) {
      return is_over(known.second) && known.second.suppressed == 0;
    });
    if (causes_.size() >= most_causes_) {
      std::uint64_t lost = 0;
      std::erase_if(causes_, [&](const auto& known) {
        if (!is_over(known.second)) return false;
        lost += known.second.suppressed;
        return true;
      });
      others_.suppressed += lost;
    }
  }
  if (causes_.size() >= most_causes_) return others_;
  return causes_.emplace(cause, State{}).first->second;
}

std::optional<std::uint64_t> LogLimit::admit(std::string_view cause) {
  const Clock::time_point now = now_();
  const MutexLock lock(mutex_);
  State& state = state_of(cause, now);
  if (state.last && now - *state.last < kInterval) {
    ++state.suppressed;
    return std::nullopt;
  }
  state.last = now;
  return std::exchange(state.suppressed, 0);
}

std::string suppressed_note(std::uint64_t suppressed) {
  if (suppressed == 0) return {};
  return fmt::format(" ({} more since the last line)", suppressed);
}

}  // namespace ckfs
