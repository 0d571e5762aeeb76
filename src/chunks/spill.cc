#include "chunks/spill.h"

#include <spdlog/spdlog.h>

namespace ckfs {

Spill::Spill(std::unique_ptr<SpillFile> file, std::uint64_t block, std::uint64_t limit,
             std::function<Clock::time_point()> now)
    : file_(std::move(file)),
      block_(block),
      limit_(limit == 0 ? ~std::uint64_t{0} : limit / block),
      now_(std::move(now)),
      most_(limit_) {}

/// A place to write to: a new one, or that of the oldest block that no thread reads.
bool Spill::take_place(std::uint64_t& place) {
  if (!free_.empty()) {
    place = free_.front();
    free_.pop_front();
    return true;
  }
  if (used_ < most_ || (used_ < limit_ && now_() >= next_try_)) {
    // Of several threads one tries.
    if (used_ >= most_) next_try_ = now_() + kUntilNextTry;
    place = used_++;
    return true;
  }
  for (const auto& age : ages_) {
    const auto slot = slots_.find(age);
    if (slot->second.readers > 0 || !slot->second.ready) continue;
    place = slot->second.place;
    remove(slot);
    return true;
  }
  return false;
}

Spill::Slots::iterator Spill::remove(Slots::iterator slot) {
  ages_.erase(slot->second.age);
  return slots_.erase(slot);
}

void Spill::forget(std::uint32_t file) {
  const MutexLock lock(mutex_);
  for (auto slot = slots_.lower_bound({file, 0});
       slot != slots_.end() && slot->first.first == file;) {
    if (slot->second.readers > 0 || !slot->second.ready) {
      ++slot;  // grows old instead
      continue;
    }
    free_.push_back(slot->second.place);
    slot = remove(slot);
  }
}

bool Spill::put(const Key& key, std::span<const std::byte> bytes) {
  CKFS_CHECK(bytes.size() <= block_);
  std::uint64_t place = 0;
  std::list<Key> age{key};  // allocated before any change
  {
    const MutexLock lock(mutex_);
    const auto [slot, is_new] = slots_.try_emplace(key);
    if (!is_new) return true;
    if (!take_place(place)) {
      slots_.erase(slot);
      return false;
    }
    slot->second.place = place;
    slot->second.age = age.begin();
    ages_.splice(ages_.end(), age);
  }
  // A failure without memory for its text is a failure, too: no slot is left half written.
  const Result<void> written =
      or_out_of_memory([&] { return file_->write(place * block_, bytes); });
  const MutexLock lock(mutex_);
  const auto slot = slots_.find(key);
  if (written) {
    slot->second.ready = true;
    statistics_.written += bytes.size();
    if (place >= most_) {
      most_ = limit_;  // the disk has room again
      free_.insert(free_.end(), failed_.begin(), failed_.end());
      failed_.clear();
    }
    return true;
  }
  // The disk is full: it keeps the blocks that it has. A place in the middle is not used until
  // there is room again: it would be the first to be tried, and fail.
  remove(slot);
  next_try_ = now_() + kUntilNextTry;
  if (place + 1 == used_) {
    const bool news = most_ != --used_;
    most_ = used_;
    if (news) spdlog::warn("{}; spilled blocks: {}", written.error().message(), used_);
  } else {
    failed_.push_back(place);
  }
  return false;
}

bool Spill::has(const Key& key) const {
  const MutexLock lock(mutex_);
  const auto slot = slots_.find(key);
  return slot != slots_.end() && slot->second.ready;
}

bool Spill::get(const Key& key, std::uint64_t offset, std::span<std::byte> out) {
  std::uint64_t place = 0;
  {
    const MutexLock lock(mutex_);
    const auto slot = slots_.find(key);
    if (slot == slots_.end() || !slot->second.ready) return false;
    ++slot->second.readers;
    ages_.splice(ages_.end(), ages_, slot->second.age);
    place = slot->second.place;
  }
  const Result<void> read =
      or_out_of_memory([&] { return file_->read(place * block_ + offset, out); });
  const MutexLock lock(mutex_);
  const auto slot = slots_.find(key);
  --slot->second.readers;
  if (read) {
    statistics_.read += out.size();
    return true;
  }
  // Not used again: the disk has lost it.
  if (slot->second.readers == 0) remove(slot);
  spdlog::warn("{}", read.error().message());
  return false;
}

std::uint64_t Spill::limit() const {
  const MutexLock lock(mutex_);
  return most_ > ~std::uint64_t{0} / block_ ? ~std::uint64_t{0} : most_ * block_;
}

std::uint64_t Spill::room() const {
  const MutexLock lock(mutex_);
  const std::uint64_t places = (most_ > used_ ? most_ - used_ : 0) + free_.size();
  return places > ~std::uint64_t{0} / block_ ? ~std::uint64_t{0} : places * block_;
}

SpillStatistics Spill::statistics() const {
  const MutexLock lock(mutex_);
  return statistics_;
}

}  // namespace ckfs
