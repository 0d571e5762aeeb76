// Small types that users of the library and all of its layers share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

namespace ckfs {

/// How the bytes of a target tensor relate to those of its source.
enum class Exactness : std::uint8_t {
  BitExact,  // moved unchanged, or equal to the bytes of the named reference tool (NaN bits apart)
  Exact,     // every value is kept, in a wider or equal dtype
  Lossy,     // values are rounded
};

/// "bit-exact", "exact", "lossy".
std::string_view name(Exactness exactness);

/// Which way source files are read.
enum class IoEngine : std::uint8_t {
  Auto,   // io_uring where the kernel allows it, else pread
  Uring,  // io_uring, or an error
  Pread,
};

/// What is known of the reader of a file before his first read. None of it changes a byte.
struct ReadOptions {
  /// He reads the file from its begin to its end: a copy, an export.
  bool whole = false;
  /// He reads everything once: the source's bytes need not stay in the host's page cache.
  bool once = false;
  /// Takes bytes at an offset of the file that were computed ahead of him, and puts them where he
  /// finds them without asking (the kernel's page cache, say); false: it could not. `offset` is a
  /// multiple of 4096, and so is the end but for the file's own. Called by other threads, perhaps
  /// still while and after the file is closed, so it owns what it uses; must not read this file.
  /// What is computed after he has asked for 256 KiB at once is not put there: an answer costs
  /// less. What is read in order for it counts as read once, where that takes nothing from others.
  std::function<bool(std::uint64_t offset, std::span<const std::byte> bytes)> deliver = {};
};

/// Read-only bytes together with what keeps them alive; cheap to copy.
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
