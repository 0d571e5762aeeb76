// The memory that a client and its fetcher share, and which parts of it are lent out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/unique_fd.h"

namespace ckfs {

/// A mapping that ends with it.
class SharedMemory {
 public:
  /// Of a new file in memory, of a size that can never change (sealed). Errors: Io, OutOfMemory.
  static Result<SharedMemory> make(std::size_t size);
  /// Of one that another process has made. Errors: Io (it is not sealed, or empty).
  static Result<SharedMemory> map(UniqueFd file);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  std::span<std::byte> bytes() const { return bytes_; }
  int descriptor() const { return file_.get(); }

 private:
  SharedMemory(UniqueFd file, std::span<std::byte> bytes) : file_(std::move(file)), bytes_(bytes) {}
  UniqueFd file_;
  std::span<std::byte> bytes_;
};

/// Lends parts of [0, size), in whole pages, by first fit. Not thread-safe.
class Places {
 public:
  static constexpr std::size_t kPage = 4096;

  explicit Places(std::size_t size) { free_.emplace(0, size / kPage * kPage); }

  /// Where `size` bytes begin; nullopt: there is no room now. Requires: size > 0.
  std::optional<std::uint64_t> take(std::size_t size);
  /// Requires: take(size) gave `place`.
  void give_back(std::uint64_t place, std::size_t size);
  /// All that is free, for tests.
  std::size_t free() const;

 private:
  std::map<std::uint64_t, std::size_t> free_;  // begin: size; no two of them touch
};

}  // namespace ckfs
