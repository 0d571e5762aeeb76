// Small types that the library's users and all of its layers share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string_view>
#include <utility>

namespace ckfs {

/// How the bytes of a target tensor relate to those of its source.
enum class Exactness : std::uint8_t {
  BitExact,   // moved unchanged, or equal to the bytes of the named reference tool (NaN bits apart)
  Exact,      // every value is kept, in a wider or equal dtype
  Lossy,      // values are rounded
  Quantized,  // made of codes and scales, as the named tool does on the CPU
};

/// "bit-exact", "exact", "lossy", "quantized".
std::string_view name(Exactness exactness);

/// Which way source files are read.
enum class IoEngine : std::uint8_t {
  Auto,   // io_uring where the kernel allows it, else pread
  Uring,  // io_uring, or an error
  Pread,
};

/// Counters of other machines and of the disk cache, since a checkpoint was opened.
struct RemoteStatistics {
  std::uint64_t requests = 0;  // to servers, with those that were sent again
  std::uint64_t bytes = 0;     // of their answers
  std::uint64_t retries = 0;
  std::uint64_t faults = 0;          // connections that failed, stalled or were cut
  std::uint64_t window = 0;          // requests that may be under way at once, now
  std::uint64_t cache_found = 0;     // bytes that the cache had
  std::uint64_t cache_missed = 0;    // bytes that it did not have
  std::uint64_t cache_kept = 0;      // bytes that were put into it
  std::uint64_t cache_left_out = 0;  // bytes that were fetched and not kept: no room, or no time
  std::uint64_t cache_evicted = 0;   // bytes of disk that made room

  bool operator==(const RemoteStatistics&) const = default;
};

/// How a file will be read, known before the first read. None of it changes a byte.
struct ReadOptions {
  /// The whole file will be read front to back, as by a copy.
  bool whole = false;
  /// Each byte will be read once: the source's bytes need not stay in the host's page cache.
  bool once = false;
  /// Ends a read that is under way, and those after it, with an error Stopped.
  std::stop_token stop = {};
};

/// Read-only bytes, and the owner that keeps them alive. Cheap to copy.
class Bytes {
 public:
  Bytes() = default;
  Bytes(std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}

  const std::byte* data() const { return bytes_.data(); }
  std::size_t size() const { return bytes_.size(); }
  std::span<const std::byte> span() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  std::shared_ptr<const void> owner_;
};

}  // namespace ckfs
