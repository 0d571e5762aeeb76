// When a request is given up, when it is tried again, and how many go at once. Time is an argument
// everywhere, so that tests need not wait. Not safe for several threads: the fetcher has one that
// waits.
//
// Budgets are times and not counts: a server that is away for half a minute is waited for, one that
// answers "busy" is asked less, and 64 requests that fail together do not come back together.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>

namespace ckfs {

using FetchTime = std::chrono::steady_clock::time_point;
using FetchDuration = std::chrono::milliseconds;

/// Limits that tests make smaller. What users set is `timeout` alone.
struct Patience {
  FetchDuration connect{5'000};
  FetchDuration first_byte_least{5'000};
  FetchDuration first_byte_most{30'000};
  FetchDuration hedge_least{500};
  FetchDuration slow_for{15'000};
  std::uint64_t slow_rate = 64 * 1024;  // bytes a second
  FetchDuration backoff_first{100};
  FetchDuration backoff_most{20'000};
  FetchDuration timeout{300'000};  // of a read, with all that is tried again
};

/// How long a host takes to begin its answers: the last 256 of them.
class FirstBytes {
 public:
  void add(FetchDuration took);
  /// What 99 of 100 did not exceed; nullopt: fewer than 64 are known.
  std::optional<FetchDuration> p99() const;
  /// How long to wait for a first byte: four times that, within the limits.
  FetchDuration limit(const Patience& patience) const;

 private:
  std::array<FetchDuration, 256> times_{};
  std::size_t count_ = 0;
};

/// Whether a request that does not move may be given up early, for another connection that may be
/// faster: where it is known how long the host usually takes, and for one request in fifty at most,
/// so that a host that is slow for all is not asked twice for everything.
class Hedges {
 public:
  void sent() { ++requests_; }
  /// `idle`: how long nothing has come. Counts it where it may.
  bool take(FetchDuration idle, const FirstBytes& times, const Patience& patience);

 private:
  std::uint64_t requests_ = 0, taken_ = 0;
};

/// Whether a transfer is dead: no first byte in time, or too few for too long behind it.
class StallWatch {
 public:
  StallWatch(FetchTime started, FetchDuration first_byte_limit, const Patience& patience)
      : mark_(started), moved_(started), limit_(first_byte_limit), patience_(&patience) {}
  /// `bytes` have come so far, headers count.
  bool is_dead(FetchTime now, std::uint64_t bytes);
  /// How long nothing has come, as far as is_dead() has seen it.
  FetchDuration idle(FetchTime now) const {
    return std::chrono::duration_cast<FetchDuration>(now - moved_);
  }

 private:
  FetchTime mark_;  // begin of the time that counts, and what had come by then
  std::uint64_t at_mark_ = 0;
  FetchTime moved_;  // when bytes came last, and how many there were then
  std::uint64_t at_move_ = 0;
  FetchDuration limit_;
  const Patience* patience_;
};

/// How long to wait before a request is tried again.
class Backoff {
 public:
  explicit Backoff(std::uint64_t seed) : random_(seed) {}
  /// Any time between nothing and the first backoff times 2^attempt ("full jitter"); where the
  /// server has asked for a time that, and a little, so that not all come at its end.
  FetchDuration wait(unsigned attempt, std::optional<std::int64_t> asked_seconds,
                     const Patience& patience);

 private:
  std::mt19937_64 random_;
};

/// What a host is asked again: a bucket of tokens that all requests share. Successes fill it, so
/// that one failure in a hundred is nothing, and so does time, slowly: when all fail, a few ask.
class RetryTokens {
 public:
  void succeeded() { tokens_ = std::min(tokens_ + kEach, kMost); }
  /// Takes one, or says when to ask.
  std::optional<FetchDuration> take(FetchTime now);

 private:
  static constexpr double kMost = 64, kEach = 0.25, kASecond = 8;
  double tokens_ = kMost;
  std::optional<FetchTime> filled_;
};

/// How many requests are in flight: found by trying whether more bring more (at first one more for
/// each that ends, which doubles them in each round; then by halves), halved when the server says
/// that it has too much to do: to several requests in a row, or to one in fourteen. A server that
/// refuses one in a hundred does so whatever is asked of it.
class Window {
 public:
  Window(std::size_t first, std::size_t most) : most_(most), size_(std::min(first, most)) {}
  std::size_t size() const { return size_; }
  /// A request came to its end and brought `bytes` (0: it failed); `was_full`: as many were in
  /// flight as may be.
  void done(FetchTime now, std::uint64_t bytes, bool was_full);
  /// 429, 503 or a stall, of a request that done() was called for. Halves once a second at most.
  void pushed_back(FetchTime now);

 private:
  std::size_t most_, size_;
  std::size_t ended_ = 0;  // since the measure began
  std::uint64_t bytes_ = 0;
  std::optional<FetchTime> began_, halved_;
  double refused_ = 0;     // share of the last fifty or so
  double best_ = 0;        // bytes a second
  std::size_t vain_ = 0;   // measures since it last grew
  std::size_t round_ = 0;  // its size when the measure began
  bool is_starting_ = true;
};

}  // namespace ckfs
