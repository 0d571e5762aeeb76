// Memory of the budget, as recycled buffers.
//
// A pool never holds more than its limit, buffers in use and kept ones together. Buffers of 256 KiB
// and more are mapped, rounded up to MiB and recycled last-in first-out: touching fresh pages costs
// as much as decoding into them (fuse-perf.md 0: 2-10 us a page), and the last one is in the CPU's
// cache. Smaller ones come from malloc. Safe for concurrent use by several threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"

namespace ckfs {

class BufferPool;

/// `size()` bytes of a pool, given back on destruction. Contents are unspecified. A buffer keeps
/// its pool alive: bytes lent to a reader may outlive the engine.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data_, size_}; }

 private:
  friend class BufferPool;
  std::shared_ptr<BufferPool> pool_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;      // as asked for
  std::size_t capacity_ = 0;  // as counted
};

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  static std::shared_ptr<BufferPool> create(std::uint64_t limit);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  /// What to call, without locks held, when memory is short: gives back buffers that nobody needs
  /// at once, about that many bytes. Set before the first acquire.
  void set_reclaim(std::function<void(std::uint64_t)> reclaim) { reclaim_ = std::move(reclaim); }

  /// A buffer of `size` bytes; waits until others give theirs back. Errors: OutOfMemory where the
  /// pool could never hold it. A caller that holds a buffer of this pool must not wait for another:
  /// everything for one piece of work is acquired at once.
  Result<Buffer> acquire(std::size_t size);

  /// The same without waiting.
  std::optional<Buffer> try_acquire(std::size_t size);

  std::uint64_t limit() const { return limit_; }
  /// Bytes in use and kept for reuse, now and at most.
  std::uint64_t held() const;
  std::uint64_t peak() const;

 private:
  friend class Buffer;
  explicit BufferPool(std::uint64_t limit) : limit_(limit) {}
  static std::size_t capacity_for(std::size_t size);
  void give_back(std::byte* data, std::size_t capacity);
  std::optional<Buffer> take_locked(std::size_t size);
  void trim_locked(std::uint64_t allowed);

  const std::uint64_t limit_;
  std::function<void(std::uint64_t)> reclaim_;
  mutable std::mutex mutex_;  // guards all below
  std::condition_variable returned_;
  std::map<std::size_t, std::vector<std::byte*>> kept_;  // by capacity
  std::uint64_t kept_bytes_ = 0;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t peak_ = 0;
};

}  // namespace ckfs
