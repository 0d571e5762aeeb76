// Small types that users of the library and all of its layers share.
#pragma once

#include <cstddef>
#include <cstdint>
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
