// Numbers are handed out in order, so when a task fails all tasks before it have been started, and
// waiting for them finds the first failure: a message does not depend on who was faster.
//
// How many threads: on a local disk whose files are cached, four are already more than a mount can
// use, and sixty would only cost memory; where every operation takes 5 ms, four make a mount of
// 1,000 shards take a minute. What tells the two apart is whether the threads use the CPUs, which
// the process's CPU time says without anybody measuring operations. So each finished task may add
// one thread, which doubles them with every round of tasks.
#include "base/parallel.h"

#include <algorithm>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <new>
#include <vector>

#include "base/start_thread.h"

namespace ckfs {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

/// Loops that end sooner have no use for more threads.
constexpr nanoseconds kFirstLook = std::chrono::milliseconds(1);

nanoseconds cpu_time() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + nanoseconds(now.tv_nsec);
}

Result<void> guarded(const Task& task, std::size_t index) {
  try {
    return task(index);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::OutOfMemory, "no memory for the headers of the checkpoint");
  }
}

class Loop {
 public:
  /// An empty `take`: nothing is taken.
  Loop(std::size_t count, const Task& make, const Task& take, const Parallel& how)
      : make_(make), take_(take), how_(how), end_(count), made_(take ? count : 0) {
    threads_.reserve(std::min(count, std::max(how.few, how.most)));
  }

  Result<void> run() {
    std::unique_lock lock(mutex_);
    while (threads_.size() + 1 < std::min(how_.few, end_) && add_thread()) {
    }
    while (!over()) {
      if (take_ && made_[taken_]) {
        take_one(lock);
      } else if (may_make()) {
        make_one(lock);
      } else {
        changed_.wait(lock);
      }
    }
    lock.unlock();
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    if (failure_) return *failure_;
    return {};
  }

 private:
  bool over() const { return take_ ? taken_ >= end_ : next_ >= end_; }
  bool may_make() const {
    return next_ < end_ && (!take_ || next_ < taken_ + 2 * (threads_.size() + 1));
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (next_ < end_) {
      if (may_make()) {
        make_one(lock);
      } else {
        changed_.wait(lock);
      }
    }
  }

  void make_one(std::unique_lock<std::mutex>& lock) {
    const std::size_t mine = next_++;
    lock.unlock();
    Result<void> done = guarded(make_, mine);
    lock.lock();
    if (!done) fail_at(mine, std::move(done).error());
    if (take_) made_[mine] = true;
    if (wants_thread()) add_thread();
    if (take_) changed_.notify_all();
  }

  void take_one(std::unique_lock<std::mutex>& lock) {
    const std::size_t mine = taken_;
    lock.unlock();
    Result<void> done = guarded(take_, mine);
    lock.lock();
    if (!done) fail_at(mine, std::move(done).error());
    ++taken_;
    changed_.notify_all();
  }

  void fail_at(std::size_t index, Error error) {
    if (index >= end_) return;
    end_ = index;
    failure_.emplace(std::move(error));
  }

  bool wants_thread() const {
    const std::size_t threads = threads_.size() + 1;
    if (refused_ || next_ >= end_ || threads >= how_.most) return false;
    const nanoseconds wall = Clock::now() - begin_;
    return wall >= kFirstLook && mostly_waited(cpu_time() - cpu_begin_, wall, threads, cpus_);
  }

  bool add_thread() {
    const auto run = [this] { work(); };
    auto thread = how_.start ? how_.start(run) : start_thread(run);
    refused_ = !thread;
    if (thread) threads_.push_back(*std::move(thread));
    return !refused_;
  }

  const Task& make_;
  const Task& take_;
  const Parallel& how_;
  const std::size_t cpus_ = std::max(1U, std::thread::hardware_concurrency());
  const Clock::time_point begin_ = Clock::now();
  const nanoseconds cpu_begin_ = cpu_time();

  std::mutex mutex_;  // guards all below; a member function has it unless it says otherwise
  std::condition_variable changed_;
  std::size_t next_ = 0;   // tasks before this one have been started
  std::size_t taken_ = 0;  // and before this one taken
  std::size_t end_;        // tasks from here on are not started: there are no more, or one failed
  std::vector<bool> made_;
  std::optional<Failure> failure_;  // of task end_
  bool refused_ = false;            // the system has no more threads
  std::vector<std::thread> threads_;
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
