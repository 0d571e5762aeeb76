// Bytes as the codecs of chunks store them, by the libraries themselves.
#pragma once

#include <cstddef>
#include <span>
#include <vector>
#include <zstd.h>

#include "base/load_le.h"
#include "format/crc32c.h"

namespace ckfs {

/// A frame that says how long it is.
inline std::vector<std::byte> zstd_frame(std::span<const std::byte> bytes, int level = 3) {
  std::vector<std::byte> out(ZSTD_compressBound(bytes.size()));
  out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), level));
  return out;
}

/// And their CRC-32C behind them.
inline std::vector<std::byte> with_sum(std::vector<std::byte> bytes) {
  const std::uint32_t sum = crc32c({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  bytes.resize(bytes.size() + 4);
  store_le(std::span(bytes).last(4), sum);
  return bytes;
}

}  // namespace ckfs
