// The bytes of a fuzzer as what a target needs: a file to parse, or a stream of choices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "base/byte_source.h"
#include "base/error.h"

namespace ckfs {

/// A source of one file, number 0.
class OneFile final : public ByteSource {
 public:
  explicit OneFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Result<void> read(std::span<const ReadRequest> batch) override {
    for (const ReadRequest& request : batch) {
      CKFS_CHECK(request.offset <= bytes_.size() &&
                 request.out.size() <= bytes_.size() - request.offset);
      if (request.out.empty()) continue;
      std::memcpy(request.out.data(), bytes_.data() + request.offset, request.out.size());
    }
    return {};
  }
  std::uint64_t size(FileId) const override { return bytes_.size(); }
  const std::string& name(FileId) const override { return name_; }

 private:
  std::span<const std::byte> bytes_;
  std::string name_ = "f";
};

/// Numbers drawn from the fuzzer's bytes while there are any, then from a generator that those
/// seeded: every input stands for a complete case, and what the fuzzer changes changes it.
class FuzzChoices {
 public:
  explicit FuzzChoices(std::span<const std::byte> bytes) : bytes_(bytes) {
    for (const std::byte byte : bytes)
      state_ = (state_ ^ std::to_integer<std::uint64_t>(byte)) * kPrime;
  }

  std::uint64_t bits() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }

  /// 0 to n - 1; small ones cost a byte or two. Requires: n > 0.
  std::int64_t below(std::int64_t n) {
    std::uint64_t value = byte();
    for (std::int64_t limit = 256; limit < n; limit <<= 8) {
      value = value << 8 | byte();
      if (limit > n >> 8) break;
    }
    return static_cast<std::int64_t>(value % static_cast<std::uint64_t>(n));
  }

 private:
  static constexpr std::uint64_t kPrime = 0x100000001b3;

  std::uint8_t byte() {
    if (!bytes_.empty()) {
      const auto first = std::to_integer<std::uint8_t>(bytes_.front());
      bytes_ = bytes_.subspan(1);
      return first;
    }
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return static_cast<std::uint8_t>(state_ >> 56);
  }

  std::span<const std::byte> bytes_;
  std::uint64_t state_ = 0xcbf29ce484222325;
};

}  // namespace ckfs
