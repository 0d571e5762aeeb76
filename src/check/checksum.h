// Checksums of bytes that come in pieces, by the usual libraries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ckfs {

enum class Algorithm : std::uint8_t {
  Sha256,  // in hex, as sha256sum(1) prints it
  Crc32c,  // in base64 of its four bytes, the highest first, as cloud stores list it
  Xxh128,  // XXH3 of 128 bits, in hex, as xxhsum(1) prints it
};

inline constexpr Algorithm kAlgorithms[] = {Algorithm::Sha256, Algorithm::Crc32c,
                                            Algorithm::Xxh128};

/// "sha256", "crc32c", "xxh128": on the command line and in JSON.
std::string_view name(Algorithm algorithm);
/// "SHA256", "CRC32C", "XXH128": in tagged lines of check files.
std::string_view tag(Algorithm algorithm);
std::optional<Algorithm> parse_algorithm(std::string_view name);

class Checksum {
 public:
  /// Errors: OutOfMemory.
  static Result<std::unique_ptr<Checksum>> create(Algorithm algorithm);
  virtual ~Checksum() = default;

  virtual void add(std::span<const std::byte> bytes) = 0;
  /// The sum of all added bytes, as text. Call it once.
  virtual std::string finish() = 0;
};

}  // namespace ckfs
