// Nothing is simulated step by step: an answer's time follows from when a place is free, and when
// what went before has been sent.
#include "support/slow_source.h"

#include <algorithm>

namespace ckfs {
namespace {

SlowSource::Clock::duration sending(std::uint64_t size, std::uint64_t bandwidth) {
  if (bandwidth == 0) return {};
  return std::chrono::duration_cast<SlowSource::Clock::duration>(
      std::chrono::duration<double>(static_cast<double>(size) / static_cast<double>(bandwidth)));
}

}  // namespace

void SlowSource::set(const Speed& speed) {
  const std::lock_guard lock(mutex_);
  speed_ = speed;
  busy_.clear();
  sent_ = {};
}

SlowSource::Speed SlowSource::speed() const {
  const std::lock_guard lock(mutex_);
  return speed_;
}

SlowSource::Clock::time_point SlowSource::answered(Clock::time_point now, std::uint64_t stream,
                                                   std::uint64_t offset, std::uint64_t size) {
  const std::lock_guard lock(mutex_);
  Clock::time_point start = now;
  if (speed_.in_flight != 0 && busy_.size() >= speed_.in_flight) {
    start = std::max(now, *busy_.begin());
    busy_.erase(busy_.begin());
  }
  std::uint64_t& position = streams_[stream];
  const Clock::time_point first =
      start + speed_.delay + (position == offset ? std::chrono::milliseconds(0) : speed_.jump);
  position = offset + size;
  Clock::time_point end = first + sending(size, speed_.request_bandwidth);
  if (speed_.total_bandwidth != 0) {
    sent_ = std::max(sent_, first) + sending(size, speed_.total_bandwidth);
    end = std::max(end, sent_);
  }
  if (speed_.in_flight != 0) busy_.insert(end);
  return end;
}

void SlowSource::forget(std::uint64_t stream) {
  const std::lock_guard lock(mutex_);
  streams_.erase(stream);
}

}  // namespace ckfs
