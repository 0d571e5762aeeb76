// Checksums of bytes that come in pieces, by the usual libraries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <ckfs/check.h>

#include "base/error.h"

namespace ckfs {

/// "SHA256", "CRC32C", "XXH128": in tagged lines of check files.
std::string_view tag(Algorithm algorithm);

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
