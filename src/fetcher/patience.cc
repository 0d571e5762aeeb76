#include "fetcher/patience.h"

#include <algorithm>

namespace ckfs {
namespace {

/// What one request is of the share that was refused.
constexpr double kOfLast = 1.0 / 50;

}  // namespace

void FirstBytes::add(FetchDuration took) {
  times_[count_++ % times_.size()] = took;
}

std::optional<FetchDuration> FirstBytes::p99() const {
  const std::size_t known = std::min(count_, times_.size());
  if (known < 64) return std::nullopt;
  auto sorted = times_;
  const auto nth = sorted.begin() + static_cast<std::ptrdiff_t>(known * 99 / 100);
  std::nth_element(sorted.begin(), nth, sorted.begin() + static_cast<std::ptrdiff_t>(known));
  return *nth;
}

FetchDuration FirstBytes::limit(const Patience& patience) const {
  const auto usual = p99();
  if (!usual) return patience.first_byte_most;
  return std::clamp(*usual * 4, patience.first_byte_least, patience.first_byte_most);
}

bool Hedges::take(FetchDuration idle, const FirstBytes& times, const Patience& patience) {
  const auto usual = times.p99();
  if (!usual || idle < std::max(*usual * 4, patience.hedge_least)) return false;
  if ((taken_ + 1) * 50 > requests_) return false;
  ++taken_;
  return true;
}

bool StallWatch::is_dead(FetchTime now, std::uint64_t bytes) {
  if (bytes != at_move_) {
    moved_ = now;
    at_move_ = bytes;
  }
  if (at_mark_ == 0) {
    if (bytes == 0) return now - mark_ >= limit_;
    mark_ = now;
    at_mark_ = bytes;
    return false;
  }
  const auto passed = now - mark_;
  if (passed < patience_->slow_for) return false;
  const double seconds = std::chrono::duration<double>(passed).count();
  if (static_cast<double>(bytes - at_mark_) < seconds * static_cast<double>(patience_->slow_rate)) {
    return true;
  }
  mark_ = now;
  at_mark_ = bytes;
  return false;
}

FetchDuration Backoff::wait(unsigned attempt, std::optional<std::int64_t> asked_seconds,
                            const Patience& patience) {
  const auto below = [&](FetchDuration most) {
    return FetchDuration(std::uniform_int_distribution<std::int64_t>(0, most.count())(random_));
  };
  if (asked_seconds) {
    return FetchDuration(std::chrono::seconds(*asked_seconds)) + below(patience.backoff_first * 4);
  }
  const FetchDuration longer(patience.backoff_first.count() << std::min(attempt, 16U));
  return below(std::min(longer, patience.backoff_most));
}

std::optional<FetchDuration> RetryTokens::take(FetchTime now) {
  if (filled_) {
    tokens_ =
        std::min(kMost, tokens_ + kASecond * std::chrono::duration<double>(now - *filled_).count());
  }
  filled_ = now;
  if (tokens_ >= 1) {
    tokens_ -= 1;
    return std::nullopt;
  }
  return FetchDuration(static_cast<std::int64_t>((1 - tokens_) / kASecond * 1000) + 1);
}

void Window::done(FetchTime now, std::uint64_t bytes, bool was_full) {
  refused_ -= refused_ * kOfLast;
  if (!was_full) {  // nothing is learned from it
    began_.reset();
    return;
  }
  if (is_starting_ && bytes > 0) size_ = std::min(size_ + 1, most_);
  if (!began_) {
    began_ = now;
    ended_ = 0;
    bytes_ = 0;
    round_ = size_;
    return;
  }
  bytes_ += bytes;
  if (++ended_ < (is_starting_ ? round_ : size_ * 2)) return;
  const double seconds = std::max(std::chrono::duration<double>(now - *began_).count(), 1e-6);
  const double rate = static_cast<double>(bytes_) / seconds;
  began_.reset();
  if (is_starting_) {
    is_starting_ = rate > best_ * 1.1;
    if (!is_starting_) size_ = round_;
    best_ = std::max(best_, rate);
  } else if (rate > best_ * 1.05 || ++vain_ >= 16) {
    // Tried again after some measures: the obstacle may be gone.
    best_ = rate;
    vain_ = 0;
    size_ = std::min(size_ + std::max<std::size_t>(size_ / 2, 1), most_);
  }
}

void Window::pushed_back(FetchTime now) {
  constexpr double kTooMany = 0.07;
  refused_ += kOfLast;
  if (refused_ < kTooMany) return;
  if (halved_ && now - *halved_ < std::chrono::seconds(1)) return;
  halved_ = now;
  size_ = std::max<std::size_t>(size_ / 2, 1);
  best_ = 0;
  vain_ = 0;
  is_starting_ = false;
  began_.reset();
}

}  // namespace ckfs
