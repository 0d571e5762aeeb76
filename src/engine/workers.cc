// One queue for tasks, in order, and before it one for calls for help. A pool that steals work
// would balance better where tasks are many and small; here a task is a MiB of decoding, and its
// order matters: a source that streams is read in the order in which tasks were added.
#include "engine/workers.h"

#include <algorithm>
#include <exception>
#include <new>
#include <spdlog/spdlog.h>
#include <utility>

#include "base/start_thread.h"
#include "base/stop.h"

namespace ckfs {

void Workers::stop() {
  std::vector<std::thread> threads;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    tasks_.clear();
    help_.clear();
    threads.swap(threads_);
    if (ended_.joinable()) threads.push_back(std::move(ended_));
  }
  changed_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

void Workers::start() {
  if (started_ || stopping_) return;
  threads_.reserve(wanted_);
  started_ = true;
  while (threads_.size() < wanted_ && start_one()) {
  }
}

bool Workers::start_one() {
  // A thread that found no place could not be joined; stop() has no memory for ended_, either.
  threads_.reserve(threads_.size() + 2);
  auto thread = start_thread([this] { run(); });
  refused_ = !thread;
  if (thread) threads_.push_back(*std::move(thread));
  return !refused_;
}

void Workers::add(Task task, Kind kind) {
  {
    const MutexLock lock(mutex_);
    try {
      start();
      if (threads_.empty()) return;
      tasks_.push_back(std::move(task));
      if (tasks_.size() > kMostTasks) tasks_.pop_front();
      if (kind == Kind::Waits && idle_ < tasks_.size() && threads_.size() < kMostThreads &&
          !refused_) {
        start_one();
      }
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
      // Without the task then, or without a thread more for it.
    }
  }
  changed_.notify_one();
}

std::size_t Workers::threads() const {
  const MutexLock lock(mutex_);
  return threads_.size();
}

/// False: this thread shall end.
bool Workers::wait_for_work(MutexLock& lock) {
  ++idle_;
  const auto until = std::chrono::steady_clock::now() + patience_;
  bool patient = true;
  while (!stopping_ && tasks_.empty() && help_.empty() && patient) {
    if (threads_.size() <= wanted_) {
      changed_.wait(lock);
    } else {
      patient = changed_.wait_until(lock, until) || threads_.size() <= wanted_;
    }
  }
  --idle_;
  return !stopping_ && (!tasks_.empty() || !help_.empty());
}

/// Takes this thread out of threads_. Gives the thread that left before: a thread cannot join
/// itself, so each joins its predecessor, and stop() joins the last.
std::thread Workers::leave() {
  const auto self = std::ranges::find(threads_, std::this_thread::get_id(), &std::thread::get_id);
  if (self == threads_.end()) return {};  // stop() has it
  std::thread before = std::exchange(ended_, std::move(*self));
  threads_.erase(self);
  return before;
}

void Workers::run() {
  while (true) {
    Task task;
    Shared* shared = nullptr;
    std::thread before;
    {
      MutexLock lock(mutex_);
      if (!wait_for_work(lock)) {
        before = leave();
      } else if (!help_.empty()) {
        shared = help_.front();
        help_.pop_front();
        shared->claims.enter();  // while it is known to last
      } else {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
    }
    if (shared != nullptr) {
      shared->run(true);
      shared->claims.leave();
      continue;
    }
    if (!task) {
      if (before.joinable()) before.join();
      return;
    }
    try {
      task();
    } catch (const std::exception& error) {
      // The reader will meet the same error and report it; a worker must not end the daemon.
      spdlog::debug("ahead of a reader: {}", error.what());
    }
  }
}

std::optional<std::size_t> Workers::Claims::next() {
  const MutexLock lock(mutex_);
  if (error_ || out_of_memory_ || next_ == count_) return std::nullopt;
  return next_++;
}

void Workers::Claims::fail(Error error) {
  const MutexLock lock(mutex_);
  if (!error_ && !out_of_memory_) error_.emplace(std::move(error));
}

void Workers::Claims::run_out_of_memory() {
  const MutexLock lock(mutex_);
  out_of_memory_ = out_of_memory_ || !error_;
}

void Workers::Claims::enter() {
  const MutexLock lock(mutex_);
  ++inside_;
}

/// Nothing of the call is touched by this helper afterwards.
void Workers::Claims::leave() {
  const MutexLock lock(mutex_);
  --inside_;
  left_.notify_all();  // with the lock held: the waiter may be gone once it is released
}

void Workers::Claims::wait_for_helpers() {
  MutexLock lock(mutex_);
  while (inside_ > 0) left_.wait(lock);
}

/// Only notes an exception of `work`: even without memory for an Error, helpers must be counted
/// out, and share() has to wait for them.
void Workers::Shared::run(bool helper) noexcept {
  const StopScope scope(stop);
  try {
    try {
      work(claims, helper);
    } catch (const std::bad_alloc&) {
      claims.run_out_of_memory();
    } catch (const std::exception& error) {
      claims.fail(Error(ErrorCode::Internal, error.what()));
    }
  } catch (const std::bad_alloc&) {
    claims.run_out_of_memory();
  }
}

Result<void> Workers::share(std::size_t count, const Work& work) {
  Shared shared{work, StopScope::token(), Claims(count)};
  if (count > 1) {
    const MutexLock lock(mutex_);
    try {
      start();
      const std::size_t most = std::min<std::size_t>(threads_.size(), count - 1);
      for (std::size_t i = 0; i < most; ++i) help_.push_back(&shared);
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
      // So many helpers, then.
    }
    changed_.notify_all();
  }
  shared.run(false);
  {
    // Workers that were busy all the time find nothing of this call.
    const MutexLock lock(mutex_);
    std::erase(help_, &shared);
  }
  shared.claims.wait_for_helpers();
  const MutexLock lock(shared.claims.mutex_);
  if (shared.claims.out_of_memory_) {
    return Failure(Error(ErrorCode::OutOfMemory, "out of memory"));  // this text needs no memory
  }
  if (shared.claims.error_) return Failure(*std::move(shared.claims.error_));
  return {};
}

}  // namespace ckfs
