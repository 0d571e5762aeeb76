// One thread: it writes to one disk, and a second would only wait for the lock of the directory.
#include "remote/keep_queue.h"

#include <new>
#include <utility>

#include "base/start_thread.h"
#include "cache/cached_listing.h"

namespace ckfs {

KeepQueue::~KeepQueue() {
  std::optional<std::thread> thread;
  {
    const MutexLock lock(mutex_);
    is_ending_ = true;
    end_ = std::chrono::steady_clock::now() + kLongestEnd;
    thread = std::exchange(thread_, std::nullopt);
    changed_.notify_all();
  }
  if (thread) thread->join();
}

void KeepQueue::add(const BlockCache::Source& place, const RemoteObject& object,
                    std::uint64_t offset, FetchedBytes bytes) noexcept {
  const std::uint64_t size = bytes.span().size();
  const auto is_added = [&] {
    const MutexLock lock(mutex_);
    if (most_ && waiting_ + size > *most_) return false;
    if (!thread_) thread_ = start_thread([this] { run(); });
    if (!thread_) return false;
    items_.push_back({&place, &object, offset, std::move(bytes)});
    waiting_ += size;
    changed_.notify_all();
    return true;
  };
  try {
    if (is_added()) return;
  } catch (const std::bad_alloc&) {  // then there is no room for what is only for later
  }
  dropped_.fetch_add(size, std::memory_order_relaxed);
}

void KeepQueue::drain(const std::function<bool()>& still) {
  constexpr std::chrono::milliseconds kLook{100};
  MutexLock lock(mutex_);
  while (waiting_ > 0 && still()) {
    (void)changed_.wait_until(lock, std::chrono::steady_clock::now() + kLook);
  }
}

void KeepQueue::run() {
  MutexLock lock(mutex_);
  while (true) {
    while (items_.empty() && !is_ending_) changed_.wait(lock);
    const bool is_late = is_ending_ && most_ && std::chrono::steady_clock::now() > end_;
    if (items_.empty() || is_late) break;
    Item item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    const std::uint64_t size = item.bytes.span().size();
    try {
      cache_.put(*item.place, cache_object(*item.object), item.offset, item.bytes.span());
    } catch (const std::bad_alloc&) {
      dropped_.fetch_add(size, std::memory_order_relaxed);
    }
    item.bytes = FetchedBytes();
    lock.lock();
    waiting_ -= size;
    changed_.notify_all();
  }
  items_.clear();
}

}  // namespace ckfs
