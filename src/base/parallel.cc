// Numbers are handed out in order, so when a task fails all tasks before it have been started, and
// waiting for them finds the first failure: a message does not depend on who was faster.
//
// How many threads: on a local disk whose files are cached, four are already more than a mount can
// use, and sixty would only cost memory; where every operation takes 5 ms, four make a mount of
// 1,000 shards take a minute. The difference is whether the threads use the CPUs, as their CPU time
// tells. So each finished task may add one thread, which doubles them with every round of tasks.
#include "base/parallel.h"

#include <algorithm>
#include <ctime>
#include <new>
#include <optional>
#include <pthread.h>
#include <vector>

#include "base/mutex.h"
#include "base/start_thread.h"
#include "base/stop.h"

namespace ckfs {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

/// Loops that end sooner have no use for more threads.
constexpr nanoseconds kFirstLook = std::chrono::milliseconds(1);

/// The CPU time of a thread; zero: it has ended.
nanoseconds cpu_time(clockid_t thread) {
  timespec now{};
  if (::clock_gettime(thread, &now) != 0) return {};
  return std::chrono::seconds(now.tv_sec) + nanoseconds(now.tv_nsec);
}

std::optional<clockid_t> clock_of(pthread_t thread) {
  clockid_t clock{};
  if (::pthread_getcpuclockid(thread, &clock) != 0) return std::nullopt;
  return clock;
}

/// nullopt: the system has no memory, perhaps not even for an error that says so.
std::optional<Result<void>> guarded(const Task& task, std::size_t index) {
  try {
    return task(index);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

class Loop {
 public:
  /// An empty `take`: nothing is taken.
  Loop(std::size_t count, const Task& make, const Task& take, const Parallel& how)
      : make_(make), take_(take), how_(how), end_(count), made_(take ? count : 0) {
    threads_.reserve(std::min(count, std::max(how.few, how.most)));
    clocks_.reserve(threads_.capacity());
  }

  Result<void> run() CKFS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (threads_.size() + 1 < std::min(how_.few, end_) && add_thread()) {
    }
    while (!over()) {
      if (take_ && made_[taken_]) {
        const std::size_t mine = taken_;
        lock.unlock();
        auto done = guarded(take_, mine);
        lock.lock();
        end_take(mine, std::move(done));
      } else if (may_make()) {
        const std::size_t mine = next_++;
        lock.unlock();
        auto done = guarded(make_, mine);
        lock.lock();
        end_make(mine, std::move(done));
      } else {
        changed_.wait(lock);
      }
    }
    // No task is left to begin, so no thread is added to these any more.
    std::vector<std::thread> threads = std::move(threads_);
    lock.unlock();
    changed_.notify_all();
    for (std::thread& thread : threads) thread.join();
    lock.lock();
    if (failure_) return *std::move(failure_);
    if (out_of_memory_) return Failure(Error(ErrorCode::OutOfMemory, "out of memory"));
    return {};
  }

 private:
  bool over() const CKFS_REQUIRES(mutex_) { return take_ ? taken_ >= end_ : next_ >= end_; }
  bool may_make() const CKFS_REQUIRES(mutex_) {
    return next_ < end_ && (!take_ || next_ < taken_ + 2 * (threads_.size() + 1));
  }

  void work() CKFS_EXCLUDES(mutex_) {
    const StopScope scope(stop_);
    MutexLock lock(mutex_);
    while (next_ < end_) {
      if (may_make()) {
        const std::size_t mine = next_++;
        lock.unlock();
        auto done = guarded(make_, mine);
        lock.lock();
        end_make(mine, std::move(done));
      } else {
        changed_.wait(lock);
      }
    }
  }

  void end_make(std::size_t mine, std::optional<Result<void>> done) CKFS_REQUIRES(mutex_) {
    fail_at(mine, std::move(done));
    ++ended_;
    if (wants_thread()) add_thread();
    if (!take_) return;
    made_[mine] = true;
    changed_.notify_all();
  }

  void end_take(std::size_t mine, std::optional<Result<void>> done) CKFS_REQUIRES(mutex_) {
    fail_at(mine, std::move(done));
    ++taken_;
    changed_.notify_all();
  }

  void fail_at(std::size_t index, std::optional<Result<void>> done) CKFS_REQUIRES(mutex_) {
    if ((done && *done) || index >= end_) return;
    end_ = index;
    out_of_memory_ = !done;
    failure_.reset();
    if (done) failure_.emplace(std::move(*done).error());
  }

  bool wants_thread() const CKFS_REQUIRES(mutex_) {
    const std::size_t threads = threads_.size() + 1;
    if (refused_ || next_ >= end_ || threads >= how_.most) return false;
    // Threads that the system does not run yet count as waiting, too: they are for the remaining
    // tasks. Ended ones never exceed the total: after a failure no task is next.
    if (threads >= end_ - ended_) return false;
    const nanoseconds wall = Clock::now() - begin_;
    return wall >= kFirstLook && mostly_waited(cpu_used(), wall, threads, cpus_);
  }

  /// By the threads of this loop since it began.
  nanoseconds cpu_used() const CKFS_REQUIRES(mutex_) {
    nanoseconds used = caller_ ? cpu_time(*caller_) - caller_begin_ : nanoseconds(0);
    for (const clockid_t clock : clocks_) used += cpu_time(clock);
    return used;
  }

  /// Requires: fewer threads than threads_ has room for; one that found no place there could not be
  /// joined.
  bool add_thread() CKFS_REQUIRES(mutex_) {
    const auto run = [this] { work(); };
    std::optional<std::thread> thread;
    try {
      thread = how_.start ? how_.start(run) : start_thread(run);
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
      // Refused, too: threads that use all this may run already.
    }
    refused_ = !thread;
    if (thread) {
      if (const auto clock = clock_of(thread->native_handle())) clocks_.push_back(*clock);
      threads_.push_back(*std::move(thread));
    }
    return !refused_;
  }

  const Task& make_;
  const Task& take_;
  const Parallel& how_;
  const std::stop_token stop_ = StopScope::token();
  const std::size_t cpus_ = std::max(1U, std::thread::hardware_concurrency());
  const Clock::time_point begin_ = Clock::now();
  const std::optional<clockid_t> caller_ = clock_of(::pthread_self());
  const nanoseconds caller_begin_ = caller_ ? cpu_time(*caller_) : nanoseconds(0);

  Mutex mutex_;
  CondVar changed_;
  std::size_t next_ CKFS_GUARDED_BY(mutex_) = 0;   // tasks before this one have been started
  std::size_t taken_ CKFS_GUARDED_BY(mutex_) = 0;  // and before this one taken
  std::size_t ended_ CKFS_GUARDED_BY(mutex_) = 0;  // that were made, whichever
  /// Tasks from here on are not started: there are no more, or one failed.
  std::size_t end_ CKFS_GUARDED_BY(mutex_);
  std::vector<bool> made_ CKFS_GUARDED_BY(mutex_);
  std::optional<Failure> failure_ CKFS_GUARDED_BY(mutex_);  // of task end_
  bool out_of_memory_ CKFS_GUARDED_BY(mutex_) = false;      // so did task end_ fail
  bool refused_ CKFS_GUARDED_BY(mutex_) = false;            // the system has no more threads
  std::vector<std::thread> threads_ CKFS_GUARDED_BY(mutex_);
  std::vector<clockid_t> clocks_ CKFS_GUARDED_BY(mutex_);  // of threads_
};

}  // namespace

bool mostly_waited(nanoseconds cpu, nanoseconds wall, std::size_t threads, std::size_t cpus) {
  return 2 * cpu < wall * static_cast<std::int64_t>(std::min(threads, cpus));
}

Result<void> run_parallel(std::size_t count, const Task& make, const Parallel& how) {
  return Loop(count, make, {}, how).run();
}

Result<void> run_in_order(std::size_t count, const Task& make, const Task& take,
                          const Parallel& how) {
  return Loop(count, make, take, how).run();
}

}  // namespace ckfs
