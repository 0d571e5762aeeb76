// Two comparisons in a row that agree decide, or one that is beyond doubt (more where one is worth
// little). A busy moment can fool one comparison; the threshold is 1.5, where two in flight give 2
// from a source that answers each request for itself and 1 from one that streams. Against asking at
// once it is decided for good: comparing again and again would make a stream start over each time.
//
// It is compared with what reading in order gave for some time, not with one request: a stream of
// 2 ns a byte takes 5 to 10 for the first request after a pause, and 2 for the next two, asked for
// together or not. But some of those bytes may have been in a cache, here or at the server, and
// cost nothing; and a server that reads in units lets one request wait for all of a unit. So a
// comparison shows nothing where the time and the one request before it do not agree. Bytes that
// the kernel has read ahead of a request are not counted: six times in a row a stream on a busy
// machine gave more to two requests than on average, and not more than to the one before.
//
// Several files may be read at the same time, each in order. Together they get all that the source
// gives; a file is compared with its share of that. Its requests may wait for theirs, and several
// at once then get more turns than one, which looks like a gain. So beside other files no single
// comparison is beyond doubt, and the speed afterwards is watched. To make no comparison then would
// be worse (seen: an export of 8 shards from a source of 50 ms took minutes instead of 8 s, because
// requests in order are short as long as it is not decided).
//
// For asking at once a wrong decision costs a source that streams nearly all of its speed (seen:
// 10 MB/s instead of 350, and a hundred bytes sent for each that was wanted). So the bytes that
// come then are timed. A small request takes as long as a large one, so each counts as a request of
// the size that those in order had: random reads are not held against the source.
#include "io/pace.h"

#include <algorithm>

namespace ckfs {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
/// Reading in order is known after so many bytes, and more than so many are not remembered.
constexpr std::uint64_t kKnown = 2 * kMiB;
constexpr std::uint64_t kRemembered = 32 * kMiB;
/// Or after so many requests whose times differ by at most a quarter: from a source that takes 50
/// ms a request, 2 MiB take a second. A stream that has just begun gives nothing so evenly. The
/// request that goes out alone in a comparison is a third one.
constexpr std::uint64_t kEvenRequests = 2;
constexpr double kEven = 1.25;
/// So many requests pass between attempts that find nothing to compare, and behind a comparison
/// that shows nothing; twice as many behind each further one, for a stream may start over for it.
/// Once in 512 MiB that costs nothing.
constexpr std::uint64_t kPause = 16;
constexpr std::uint64_t kLongestPause = 4096;
/// A stream that gives a byte as soon as this (250 MB/s) is not worth a comparison.
constexpr Pace::Seconds kSoon(4e-9);
constexpr double kGain = 1.5;
/// As four at once give nearly 4: no busy moment does that.
constexpr double kClearGain = 3;
/// One request that took so much longer than usual waited for something else.
constexpr double kOdd = 2;
constexpr int kVotes = 2;
constexpr int kDoubtfulVotes = 6;  // for asking at once; against it two are enough
/// Asked at once, so many bytes are one look, and two in a row that find it so much slower than in
/// order a mistake.
constexpr std::uint64_t kLook = 8 * kMiB;
constexpr double kMistake = 3;
constexpr int kSlowLooks = 2;
/// A network that stopped for a while is not such a mistake. So the source is measured anew, but at
/// most so often; and after so many good looks in a row the count starts again.
constexpr int kMostTakenBack = 3;
constexpr int kProven = 64;

}  // namespace

Pace::Pace() : pause_(kPause) {}

bool Pace::knows_order() const {
  return order_bytes_ >= kKnown ||
         (order_requests_ >= kEvenRequests && slowest_ <= kEven * fastest_);
}

Pace::Seconds Pace::byte_in_order() const {
  return order_seconds_ / static_cast<double>(order_bytes_);
}

bool Pace::is_open() const {
  return votes_ > -kVotes && !at_once_ && !(knows_order() && byte_in_order() < kSoon);
}

bool Pace::at_once() const {
  const MutexLock lock(mutex_);
  return at_once_;
}

bool Pace::wants_comparison() const {
  const MutexLock lock(mutex_);
  return is_open();
}

bool Pace::begin_comparison() {
  const MutexLock lock(mutex_);
  if (comparing_ || until_comparison_ > 0) return false;
  if (!is_open() || !knows_order()) return false;
  comparing_ = true;
  return true;
}

void Pace::end_comparison() {
  const MutexLock lock(mutex_);
  comparing_ = false;
}

void Pace::had_nothing_to_compare() {
  const MutexLock lock(mutex_);
  until_comparison_ = kPause;
}

void Pace::began_in_order(Time now) {
  const MutexLock lock(mutex_);
  if (in_order_now_++ == 0) in_order_since_ = now;
}

void Pace::ended_in_order(std::uint64_t bytes, Time now) {
  const MutexLock lock(mutex_);
  const Seconds waited = now - in_order_since_;
  in_order_since_ = now;
  --in_order_now_;
  until_comparison_ -= std::min<std::uint64_t>(until_comparison_, 1);
  if (at_once_ || bytes == 0) return;  // the speed in order, for comparisons, stays
  ++order_requests_;
  order_bytes_ += bytes;
  order_seconds_ += waited;
  fastest_ = order_requests_ == 1 ? waited : std::min(fastest_, waited);
  slowest_ = std::max(slowest_, waited);
  if (order_bytes_ <= kRemembered) return;
  order_requests_ = (order_requests_ + 1) / 2;
  order_bytes_ /= 2;
  order_seconds_ /= 2;
}

void Pace::compared(Seconds at_once, Seconds alone, Trust trust) {
  const MutexLock lock(mutex_);
  if (!is_open() || !knows_order()) return;  // another thread was faster
  const Seconds in_order = static_cast<double>(1 + in_order_now_) * byte_in_order();
  const bool gains = in_order > kGain * at_once;
  const bool gains_beside = alone > kGain * at_once;
  const bool doubtful = alone > kOdd * in_order || !gains_beside;
  if (gains ? doubtful : gains_beside) {
    until_comparison_ = pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
    return;
  }
  if (gains != (votes_ > 0)) votes_ = 0;
  const bool clear = trust == Trust::Much && in_order_now_ == 0 &&
                     std::min(in_order, alone) > kClearGain * at_once;
  votes_ += !gains ? -1 : clear ? kVotes : 1;
  at_once_ = votes_ >= (trust == Trust::Much ? kVotes : kDoubtfulVotes);
  looks_ = 0;
  forget_look();
}

void Pace::forget_look() {
  look_bytes_ = 0;
  would_take_ = busy_ = Seconds(0);
}

void Pace::began(Time now) {
  const MutexLock lock(mutex_);
  if (in_flight_++ == 0) busy_since_ = now;
}

void Pace::ended(std::uint64_t requests, std::uint64_t bytes, Time now) {
  const MutexLock lock(mutex_);
  busy_ += now - busy_since_;
  busy_since_ = now;
  --in_flight_;
  if (!at_once_) return;
  look_bytes_ += bytes;
  const Seconds request = order_seconds_ / static_cast<double>(order_requests_);
  would_take_ += std::max(static_cast<double>(bytes) * byte_in_order(),
                          static_cast<double>(requests) * request);
  // The look may end early where so little comes that it cannot end well.
  if (look_bytes_ < kLook && busy_ < kMistake * static_cast<double>(kLook) * byte_in_order())
    return;
  if (busy_ > kMistake * would_take_) {
    looks_ = std::min(looks_, 0) - 1;
  } else {
    looks_ = std::min(std::max(looks_, 0) + 1, kProven);
  }
  if (looks_ == kProven) taken_back_ = 0;
  if (looks_ == -kSlowLooks) {
    at_once_ = false;
    votes_ = ++taken_back_ < kMostTakenBack ? 0 : -kVotes;
  }
  forget_look();
}

}  // namespace ckfs
