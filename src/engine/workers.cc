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
  started_ = true;
  threads_.reserve(wanted_);
  while (threads_.size() < wanted_ && start_one()) {
  }
}

bool Workers::start_one() {
  threads_.reserve(threads_.size() + 1);  // a thread that found no place could not be joined
  auto thread = start_thread([this] { run(); });
  refused_ = !thread;
  if (thread) threads_.push_back(*std::move(thread));
  return !refused_;
}

void Workers::add(Task task, Kind kind) {
  {
    const MutexLock lock(mutex_);
    start();
    if (threads_.empty()) return;
    tasks_.push_back(std::move(task));
    if (kind == Kind::Waits && idle_ < tasks_.size() && threads_.size() < kMostThreads &&
        !refused_) {
      start_one();
    }
    if (tasks_.size() > kMostTasks) tasks_.pop_front();
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

/// Takes this thread out of threads_. Gives the one that went before: nobody can join itself, so
/// each joins its predecessor, and stop() the last.
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
    std::thread before;
    {
      MutexLock lock(mutex_);
      if (wait_for_work(lock)) {
        std::deque<Task>& queue = help_.empty() ? tasks_ : help_;
        task = std::move(queue.front());
        queue.pop_front();
      } else {
        before = leave();
      }
    }
    if (!task) {
      if (before.joinable()) before.join();
      return;
    }
    try {
      task();
    } catch (const std::exception& error) {
      // The reader will meet the same and report it; a worker must not take the daemon along.
      spdlog::debug("ahead of a reader: {}", error.what());
    }
  }
}

std::optional<std::size_t> Workers::Claims::next() {
  const MutexLock lock(mutex_);
  if (error_ || next_ == count_) return std::nullopt;
  return next_++;
}

void Workers::Claims::fail(Error error) {
  const MutexLock lock(mutex_);
  if (!error_) error_.emplace(std::move(error));
}

Result<void> Workers::share(std::size_t count,
                            const std::function<void(Claims&, bool helper)>& work) {
  const auto guarded = [&work](Claims& claims, bool helper) {
    try {
      work(claims, helper);
    } catch (const std::bad_alloc&) {
      claims.fail(Error(ErrorCode::OutOfMemory, "memory: the system gives no more"));
    } catch (const std::exception& error) {
      claims.fail(Error(ErrorCode::Internal, error.what()));
    }
  };
  // Shared with the helpers' tasks, which may come to their turn after this call has returned.
  const std::shared_ptr<Claims> claims(new Claims(count));
  if (count > 1) {
    const MutexLock lock(mutex_);
    start();
    const std::size_t most = std::min<std::size_t>(threads_.size(), count - 1);
    try {
      for (std::size_t i = 0; i < most; ++i) {
        help_.emplace_back([claims, &guarded] {
          {
            const MutexLock inside(claims->mutex_);
            if (claims->closed_) return;  // `guarded` is gone
            ++claims->inside_;
          }
          guarded(*claims, true);
          const MutexLock inside(claims->mutex_);
          --claims->inside_;
          claims->left_.notify_all();
        });
      }
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
      // So many helpers, then.
    }
  }
  changed_.notify_all();
  guarded(*claims, false);
  MutexLock lock(claims->mutex_);
  claims->closed_ = true;
  while (claims->inside_ > 0) claims->left_.wait(lock);
  if (claims->error_) return Failure(*claims->error_);
  return {};
}

}  // namespace ckfs
