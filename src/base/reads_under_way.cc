// A list under a lock, and one thread that looks at it. A read that is answered at once costs two
// turns of the lock; the thread sleeps while none is under way.
#include "base/reads_under_way.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/start_thread.h"

namespace ckfs {

using Clock = std::chrono::steady_clock;

ReadsUnderWay::ReadsUnderWay(IsGone is_gone, std::chrono::milliseconds look)
    : is_gone_(std::move(is_gone)), look_(look), thread_(start_thread([this] { run(); })) {}

ReadsUnderWay::~ReadsUnderWay() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_) thread_->join();
}

ReadsUnderWay::Read::Read(ReadsUnderWay* reads, pid_t thread, bool direct)
    : reads_(reads), thread_(thread), direct_(direct), since_(Clock::now()), place_{this} {
  if (reads_ == nullptr) return;
  const MutexLock lock(reads_->mutex_);
  reads_->under_way_.splice(reads_->under_way_.end(), place_);
  if (reads_->all_) stop_.request_stop();  // no reader waits for it yet
  if (reads_->idle_) reads_->changed_.notify_all();
}

ReadsUnderWay::Read::~Read() {
  if (reads_ == nullptr) return;
  const MutexLock lock(reads_->mutex_);
  std::list<Read*>& all = reads_->under_way_;
  // Short: there are no more than threads of the loop.
  for (auto at = all.begin(); at != all.end(); ++at) {
    if (*at != this) continue;
    place_.splice(place_.end(), all, at);
    return;
  }
}

void ReadsUnderWay::stop_all() {
  MutexLock lock(mutex_);
  all_ = true;
  for (;;) {
    const auto next = std::ranges::find_if(
        under_way_, [](const Read* read) { return !read->stop_.stop_requested(); });
    if (next == under_way_.end()) return;
    std::stop_source stop = (*next)->stop_;
    // Without the lock: those that wait are woken with locks of their own.
    lock.unlock();
    stop.request_stop();
    lock.lock();
  }
}

void ReadsUnderWay::run() {
  MutexLock lock(mutex_);
  while (!ending_) {
    if (under_way_.empty()) {
      idle_ = true;
      changed_.wait(lock);
      idle_ = false;
      continue;
    }
    const auto now = Clock::now();
    if (changed_.wait_until(lock, now + look_) && Clock::now() < now + look_) continue;
    std::list<Look> lasting;
    try {
      for (const Read* const read : under_way_) {
        if (read->since_ > now) continue;
        lasting.push_back({read->stop_, read->thread_, read->direct_});
      }
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
      // There is no memory to look at more of them now.
    }
    lock.unlock();
    look_at(lasting);
    lock.lock();
  }
}

void ReadsUnderWay::look_at(const std::list<Look>& lasting) const {
  for (const Look& read : lasting) {
    std::stop_source stop = read.stop;
    if (!stop.stop_requested() && is_gone_(read.thread, read.direct)) stop.request_stop();
  }
}

}  // namespace ckfs
