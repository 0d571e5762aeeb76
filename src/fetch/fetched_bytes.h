// Bytes that a fetcher has brought, where they lie in the memory that both share: the holder's
// until this is destroyed. Nothing is copied, and memory that is held is missing for others.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

namespace ckfs {

class FetchQueue;

/// Must be destroyed before its client is. Safe to destroy on any thread.
class FetchedBytes {
 public:
  FetchedBytes() = default;
  /// `place`: all that was lent; the first `size` bytes of it are the answer.
  FetchedBytes(FetchQueue& queue, std::span<const std::byte> place, std::size_t size)
      : queue_(&queue), place_(place), size_(size) {}
  FetchedBytes(FetchedBytes&& other) noexcept
      : queue_(std::exchange(other.queue_, nullptr)), place_(other.place_), size_(other.size_) {}
  FetchedBytes& operator=(FetchedBytes&& other) noexcept {
    std::swap(queue_, other.queue_);
    std::swap(place_, other.place_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~FetchedBytes();

  std::span<const std::byte> span() const { return place_.first(size_); }

 private:
  FetchQueue* queue_ = nullptr;  // nullptr: there are none
  std::span<const std::byte> place_;
  std::size_t size_ = 0;
};

}  // namespace ckfs
