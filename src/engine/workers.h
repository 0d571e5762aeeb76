// The threads that compute ahead of readers, and that help a thread with a tile.
//
// No result depends on them: a task that never runs costs speed alone, and the thread that shares
// work does all of it if no worker comes. So a thread that cannot be started is not missed, and the
// queue may be short.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"

namespace ckfs {

class Workers {
 public:
  /// Threads are started with the first task, or the first work that is shared: a checkpoint that
  /// is only listed starts none. Threads beyond `threads`, which tasks of Kind::Waits have started,
  /// end after `patience` without work.
  explicit Workers(unsigned threads, std::chrono::nanoseconds patience = std::chrono::seconds(5))
      : wanted_(threads), patience_(patience) {}
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Waits for the running tasks, and drops the rest and all later ones.
  void stop();

  using Task = std::function<void()>;

  /// What a task mostly does. One that waits for a slow source needs no CPU, so more of them may
  /// run than there are CPUs.
  enum class Kind : std::uint8_t { Computes, Waits };

  /// Runs `task` on some worker, in the order of the calls. The oldest tasks are dropped where
  /// kMostTasks wait: their readers have moved on. Where there is no thread, or no memory, the task
  /// is dropped. An exception of a task is logged (debug) and forgotten.
  void add(Task task, Kind kind = Kind::Computes);

  /// Gives the numbers of the parts of a shared piece of work, each once.
  class Claims {
   public:
    /// nullopt: none is left, or one has failed.
    std::optional<std::size_t> next();
    /// Makes the error that of the whole work; the first one wins.
    void fail(Error error);

   private:
    friend class Workers;
    explicit Claims(std::size_t count) : count_(count) {}
    void enter();
    void leave();
    void wait_for_helpers();
    void run_out_of_memory();
    const std::size_t count_;
    Mutex mutex_;
    CondVar left_;
    std::size_t next_ CKFS_GUARDED_BY(mutex_) = 0;
    unsigned inside_ CKFS_GUARDED_BY(mutex_) = 0;  // helpers at work
    std::optional<Error> error_ CKFS_GUARDED_BY(mutex_);
    bool out_of_memory_ CKFS_GUARDED_BY(mutex_) = false;  // is the error, whose text would need
                                                          // memory, too
  };

  using Work = std::function<void(Claims&, bool helper)>;

  /// Calls `work` on this thread, and at the same time on every worker that is idle or becomes so
  /// while parts are left. Each claims parts until there are none. Helpers are asked to stop when
  /// this thread is (base/stop.h). Returns when all of them have ended. Errors: the first that was
  /// given to Claims::fail(); Internal or OutOfMemory for what `work` throws.
  Result<void> share(std::size_t count, const Work& work);

  /// Threads now.
  std::size_t threads() const;

  static constexpr std::size_t kMostTasks = 256;
  /// Threads that tasks of Kind::Waits may bring them to: as many requests as a far source answers
  /// at once, and a few to decode what has come.
  static constexpr std::size_t kMostThreads = 80;

 private:
  /// A call of share(), while it lasts.
  struct Shared {
    const Work& work;
    const std::stop_token stop;  // of the sharing thread
    Claims claims;
    void run(bool helper) noexcept;
  };

  void start() CKFS_REQUIRES(mutex_);
  bool start_one() CKFS_REQUIRES(mutex_);
  void run();
  bool wait_for_work(MutexLock& lock) CKFS_REQUIRES(mutex_);
  std::thread leave() CKFS_REQUIRES(mutex_);

  const unsigned wanted_;
  const std::chrono::nanoseconds patience_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Task> tasks_ CKFS_GUARDED_BY(mutex_);
  std::deque<Shared*> help_ CKFS_GUARDED_BY(mutex_);  // before all tasks
  std::size_t idle_ CKFS_GUARDED_BY(mutex_) = 0;
  bool refused_ CKFS_GUARDED_BY(mutex_) = false;  // the system gives no more threads
  bool started_ CKFS_GUARDED_BY(mutex_) = false;
  bool stopping_ CKFS_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ CKFS_GUARDED_BY(mutex_);
  std::thread ended_ CKFS_GUARDED_BY(mutex_);  // the last that left; not joined yet
};

}  // namespace ckfs
