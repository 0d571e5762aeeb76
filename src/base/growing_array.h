// An array of plain values that grows where it is: realloc() of a large block moves its pages, not
// its bytes. A std::vector copies them, and has both blocks while it does: reading a file into one
// takes twice the memory, and touches each page twice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace ckfs {

/// Can be moved, not copied; after a move the old array is empty. Growing and shrink_to_fit() may
/// move the elements. Without memory they throw std::bad_alloc and change nothing.
template <typename T>
class GrowingArray {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= alignof(std::max_align_t));

 public:
  using value_type = T;
  using const_iterator = const T*;

  GrowingArray() = default;
  GrowingArray(GrowingArray&& other) noexcept
      : data_(std::move(other.data_)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  GrowingArray& operator=(GrowingArray&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, 0);
    return *this;
  }

  std::size_t size() const { return size_; }
  std::size_t capacity() const { return capacity_; }
  bool empty() const { return size_ == 0; }

  T* begin() { return data_.get(); }
  T* end() { return begin() + size_; }
  const T* begin() const { return data_.get(); }
  const T* end() const { return begin() + size_; }

  /// Requires: it has elements.
  T& back() { return (*this)[size_ - 1]; }
  const T& back() const { return (*this)[size_ - 1]; }
  void pop_back() {
    CKFS_CHECK(size_ > 0);
    --size_;
  }

  /// Aborts beyond the end.
  T& operator[](std::size_t at) {
    CKFS_CHECK(at < size_);
    return data_.get()[at];
  }
  const T& operator[](std::size_t at) const {
    CKFS_CHECK(at < size_);
    return data_.get()[at];
  }
  std::span<const T> subspan(std::size_t at, std::size_t count) const {
    CKFS_CHECK(at <= size_ && count <= size_ - at);
    return {begin() + at, count};
  }

  void push_back(T value) {
    make_room(1);
    data_.get()[size_++] = value;
  }

  /// Requires: `values` are of no GrowingArray that grows by this.
  void append(std::span<const T> values) {
    make_room(values.size());
    std::ranges::copy(values, end());
    size_ += values.size();
  }

  /// New elements are T().
  void resize(std::size_t size) {
    if (size > size_) {
      make_room(size - size_);
      std::fill(end(), begin() + size, T());
    }
    size_ = size;
  }

  /// Gives back what was kept for growing.
  void shrink_to_fit() {
    if (size_ == 0) {
      data_.reset();
      capacity_ = 0;
    } else if (size_ < capacity_) {
      move_to(size_);
    }
  }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  static constexpr std::size_t kLeast = 64;

  void make_room(std::size_t more) {
    if (more <= capacity_ - size_) return;
    // By a half: pages that are never written to take no memory.
    move_to(std::max({size_ + more, capacity_ + capacity_ / 2, kLeast}));
  }

  void move_to(std::size_t capacity) {
    if (capacity > PTRDIFF_MAX / sizeof(T)) throw std::bad_alloc();
    void* const moved = std::realloc(data_.get(), capacity * sizeof(T));
    if (moved == nullptr) throw std::bad_alloc();
    static_cast<void>(data_.release());
    data_.reset(static_cast<T*>(moved));
    capacity_ = capacity;
  }

  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace ckfs
