// Why not malloc alone: its high-water mark is not ours to bound (arenas, fragments), and it
// returns large blocks to the kernel, so that every request would fault its pages in again.
#include "memory/buffer_pool.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <sys/mman.h>
#include <utility>

#include "base/units.h"

namespace ckfs {
namespace {

constexpr std::size_t kMapped = 256_KiB;

std::byte* allocate(std::size_t capacity) {
  if (capacity < kMapped) return static_cast<std::byte*>(std::malloc(capacity));
  void* memory =
      ::mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  // Huge pages make tiles faster to fill (fuse-perf.md H); a kernel without them says no, and that
  // changes nothing else.
  if (capacity >= 2_MiB) ::madvise(memory, capacity, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

void release(std::byte* data, std::size_t capacity) {
  if (capacity < kMapped) {
    std::free(data);
  } else {
    ::munmap(data, capacity);
  }
}

}  // namespace

Buffer::Buffer(Buffer&& other) noexcept
    : pool_(std::move(other.pool_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      capacity_(std::exchange(other.capacity_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

Buffer::~Buffer() {
  if (pool_ != nullptr && capacity_ != 0) pool_->give_back(data_, capacity_);
}

std::shared_ptr<BufferPool> BufferPool::create(std::uint64_t limit) {
  return std::shared_ptr<BufferPool>(new BufferPool(limit));
}

BufferPool::~BufferPool() {
  CKFS_CHECK(used_bytes_ == 0);
  for (auto& [capacity, buffers] : kept_) {
    for (std::byte* data : buffers) release(data, capacity);
  }
}

std::size_t BufferPool::capacity_for(std::size_t size) {
  const std::size_t unit = size < kMapped ? 64 : 1_MiB;
  return (size + unit - 1) / unit * unit;
}

std::optional<Buffer> BufferPool::take_locked(std::size_t size) {
  Buffer buffer;
  buffer.pool_ = shared_from_this();
  buffer.size_ = size;
  if (size == 0) return buffer;
  const std::size_t capacity = capacity_for(size);
  if (const auto kept = kept_.find(capacity); kept != kept_.end() && !kept->second.empty()) {
    buffer.data_ = kept->second.back();
    kept->second.pop_back();
    kept_bytes_ -= capacity;
  } else {
    if (used_bytes_ + capacity > limit_) return std::nullopt;
    trim_locked(limit_ - capacity - used_bytes_);
    buffer.data_ = allocate(capacity);
    // The machine has less memory than the budget allows: ENOMEM for this request, no retry.
    if (buffer.data_ == nullptr) throw std::bad_alloc();
  }
  buffer.capacity_ = capacity;
  used_bytes_ += capacity;
  peak_ = std::max(peak_, used_bytes_ + kept_bytes_);
  return buffer;
}

/// Unmaps kept buffers until at most `allowed` bytes of them remain.
void BufferPool::trim_locked(std::uint64_t allowed) {
  for (auto& [capacity, buffers] : kept_) {
    while (kept_bytes_ > allowed && !buffers.empty()) {
      release(buffers.back(), capacity);
      buffers.pop_back();
      kept_bytes_ -= capacity;
    }
  }
}

std::optional<Buffer> BufferPool::try_acquire(std::size_t size) {
  {
    const std::lock_guard lock(mutex_);
    if (auto buffer = take_locked(size)) return buffer;
  }
  if (reclaim_) reclaim_(capacity_for(size));
  const std::lock_guard lock(mutex_);
  return take_locked(size);
}

Result<Buffer> BufferPool::acquire(std::size_t size) {
  const std::size_t capacity = capacity_for(size);
  if (capacity > limit_) {
    return fail(ErrorCode::OutOfMemory, "memory budget: {} bytes are needed at once (limit {})",
                capacity, limit_);
  }
  while (true) {
    if (auto buffer = try_acquire(size)) return std::move(*buffer);
    std::unique_lock lock(mutex_);
    if (auto buffer = take_locked(size)) return std::move(*buffer);
    // The bound is for the case that what was in use when reclaim ran has become reclaimable since
    // (a tile whose last reader left gives nothing back by itself).
    returned_.wait_for(lock, std::chrono::milliseconds(5));
  }
}

void BufferPool::give_back(std::byte* data, std::size_t capacity) {
  std::unique_lock lock(mutex_);
  used_bytes_ -= capacity;
  if (capacity < kMapped) {
    lock.unlock();
    release(data, capacity);
  } else {
    kept_[capacity].push_back(data);
    kept_bytes_ += capacity;
    lock.unlock();
  }
  returned_.notify_all();
}

std::uint64_t BufferPool::held() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_ + kept_bytes_;
}

std::uint64_t BufferPool::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

}  // namespace ckfs
