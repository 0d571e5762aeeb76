// When a slow source answers: a disk in a cloud, a server far away. Only the times; the bytes are
// another's (counting_source.cc on a mount, delayed_source.h in a program).
//
// Safe for concurrent use by several threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>

namespace ckfs {

class SlowSource {
 public:
  using Clock = std::chrono::steady_clock;

  struct Speed {
    /// Each request waits so long before its first byte.
    std::chrono::milliseconds delay{0};
    /// ... and so much longer if it does not begin where the last one of its stream ended.
    std::chrono::milliseconds jump{0};
    std::uint64_t request_bandwidth = 0;  // bytes a second of one request; 0: no limit
    std::uint64_t total_bandwidth = 0;    // bytes a second of all together; 0: no limit
    std::uint64_t in_flight = 0;          // requests that are worked on at a time; 0: no limit

    /// 11 ms for 2 MB, 2 GB/s with ten such in flight.
    static Speed cloud_disk() {
      return {std::chrono::milliseconds(1), std::chrono::milliseconds(0), 200'000'000,
              2'000'000'000, 10};
    }
  };

  void set(const Speed& speed);
  Speed speed() const;

  /// When the answer to a request that arrives at `now` is complete; each call is one request.
  /// `stream` is an open file, or any other number.
  Clock::time_point answered(Clock::time_point now, std::uint64_t stream, std::uint64_t offset,
                             std::uint64_t size);

  /// The stream has ended.
  void forget(std::uint64_t stream);

 private:
  mutable std::mutex mutex_;  // guards all below
  Speed speed_;
  std::multiset<Clock::time_point> busy_;           // until when; as many as may be in flight
  Clock::time_point sent_;                          // until when the common bandwidth is used
  std::map<std::uint64_t, std::uint64_t> streams_;  // where each ended
};

}  // namespace ckfs
