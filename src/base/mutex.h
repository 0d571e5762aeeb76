// Locks that clang's -Wthread-safety checks: every member that a lock guards names it, and an
// access without the lock does not compile (presets asan, tsan, fuzz and tidy). GCC sees plain
// standard locks.
//
// The standard's own types are not used in members because libstdc++ does not annotate them. A
// predicate is a loop around CondVar::wait and not a lambda: the analysis looks at a lambda as at a
// function of its own, which holds no lock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#if defined(__clang__)
#define CKFS_THREAD_ATTRIBUTE_(x) __attribute__((x))
#else
#define CKFS_THREAD_ATTRIBUTE_(x)
#endif

/// On a member: touched only while the Mutex is held.
#define CKFS_GUARDED_BY(...) CKFS_THREAD_ATTRIBUTE_(guarded_by(__VA_ARGS__))
/// On a function: the caller holds the lock, or must not hold it.
#define CKFS_REQUIRES(...) CKFS_THREAD_ATTRIBUTE_(requires_capability(__VA_ARGS__))
#define CKFS_EXCLUDES(...) CKFS_THREAD_ATTRIBUTE_(locks_excluded(__VA_ARGS__))
/// On a lock: it is taken before these.
#define CKFS_ACQUIRED_BEFORE(...) CKFS_THREAD_ATTRIBUTE_(acquired_before(__VA_ARGS__))
/// For the types below.
#define CKFS_CAPABILITY(...) CKFS_THREAD_ATTRIBUTE_(capability(__VA_ARGS__))
#define CKFS_SCOPED_CAPABILITY CKFS_THREAD_ATTRIBUTE_(scoped_lockable)
#define CKFS_ACQUIRE(...) CKFS_THREAD_ATTRIBUTE_(acquire_capability(__VA_ARGS__))
#define CKFS_ACQUIRE_SHARED(...) CKFS_THREAD_ATTRIBUTE_(acquire_shared_capability(__VA_ARGS__))
#define CKFS_RELEASE(...) CKFS_THREAD_ATTRIBUTE_(release_capability(__VA_ARGS__))
#define CKFS_RELEASE_SHARED(...) CKFS_THREAD_ATTRIBUTE_(release_shared_capability(__VA_ARGS__))
#define CKFS_RELEASE_GENERIC(...) CKFS_THREAD_ATTRIBUTE_(release_generic_capability(__VA_ARGS__))

namespace ckfs {

/// A std::mutex.
class CKFS_CAPABILITY("mutex") Mutex {
 public:
  void lock() CKFS_ACQUIRE() { mutex_.lock(); }
  void unlock() CKFS_RELEASE() { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

/// Holds a Mutex for a scope; unlock() and lock() leave and enter again within it.
class CKFS_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CKFS_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() CKFS_RELEASE() = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() CKFS_RELEASE() { lock_.unlock(); }
  void lock() CKFS_ACQUIRE() { lock_.lock(); }

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

/// A std::condition_variable: `while (!ready_) changed_.wait(lock);`
class CondVar {
 public:
  /// Requires: `lock` is held; it is held again on return. May return without a notification.
  void wait(MutexLock& lock) { condition_.wait(lock.lock_); }

  /// False: the time is up.
  template <typename Clock, typename Duration>
  bool wait_until(MutexLock& lock, const std::chrono::time_point<Clock, Duration>& time) {
    return condition_.wait_until(lock.lock_, time) == std::cv_status::no_timeout;
  }

  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

/// A std::shared_mutex: many readers or one writer.
class CKFS_CAPABILITY("shared mutex") SharedMutex {
 public:
  void lock() CKFS_ACQUIRE() { mutex_.lock(); }
  void unlock() CKFS_RELEASE() { mutex_.unlock(); }
  void lock_shared() CKFS_ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() CKFS_RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

/// Holds a SharedMutex as its one writer for a scope.
class CKFS_SCOPED_CAPABILITY WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) CKFS_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~WriterLock() CKFS_RELEASE() { mutex_.unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  SharedMutex& mutex_;
};

/// Holds a SharedMutex as one of its readers for a scope.
class CKFS_SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) CKFS_ACQUIRE_SHARED(mutex) : mutex_(mutex) {
    mutex_.lock_shared();
  }
  ~ReaderLock() CKFS_RELEASE_GENERIC() { mutex_.unlock_shared(); }
  ReaderLock(const ReaderLock&) = delete;
  ReaderLock& operator=(const ReaderLock&) = delete;

 private:
  SharedMutex& mutex_;
};

}  // namespace ckfs
