// Puts bytes that were fetched into the disk cache, behind the backs of readers: a disk that is
// slow, full or broken makes no read slower. Bytes that it cannot take in time are not kept.
//
// Safe for concurrent use by several threads. It has a thread of its own, which it starts with the
// first bytes: a daemon may confine itself before.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "base/mutex.h"
#include "cache/block_cache.h"
#include "fetch/fetched_bytes.h"
#include "fetch/remote_source.h"

namespace ckfs {

class KeepQueue {
 public:
  /// `most`: bytes that may wait; further ones are dropped. nullopt: none are dropped, and the
  /// memory that they lie in is the only limit.
  KeepQueue(BlockCache& cache, std::optional<std::uint64_t> most) : cache_(cache), most_(most) {}
  /// Writes the bytes that wait; where bytes may be dropped, for kLongestEnd at most.
  ~KeepQueue();
  KeepQueue(const KeepQueue&) = delete;
  KeepQueue& operator=(const KeepQueue&) = delete;

  /// Bytes of an object from `offset` on. `place` and `object` must outlive this.
  void add(const BlockCache::Source& place, const RemoteObject& object, std::uint64_t offset,
           FetchedBytes bytes) noexcept CKFS_EXCLUDES(mutex_);

  /// Waits until all that was added is written, or `still` is false.
  void drain(const std::function<bool()>& still) CKFS_EXCLUDES(mutex_);

  /// Bytes that were dropped.
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

  static constexpr std::chrono::seconds kLongestEnd{2};

 private:
  struct Item {
    const BlockCache::Source* place;
    const RemoteObject* object;
    std::uint64_t offset;
    FetchedBytes bytes;
  };
  void run() CKFS_EXCLUDES(mutex_);

  BlockCache& cache_;
  const std::optional<std::uint64_t> most_;
  std::atomic<std::uint64_t> dropped_{0};
  Mutex mutex_;
  CondVar changed_;
  std::deque<Item> items_ CKFS_GUARDED_BY(mutex_);
  std::uint64_t waiting_ CKFS_GUARDED_BY(mutex_) = 0;  // bytes, with those that are written now
  bool is_ending_ CKFS_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point end_ CKFS_GUARDED_BY(mutex_){};
  std::optional<std::thread> thread_ CKFS_GUARDED_BY(mutex_);
};

}  // namespace ckfs
