// Bytes as the codecs of chunks store them, by the libraries themselves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

/// A frame of `size` zeros, whatever their number: 4 bytes for each 128 KiB of them.
inline std::vector<std::byte> zstd_zeros(std::uint64_t size) {
  constexpr std::uint64_t kBlock = std::uint64_t{128} << 10;
  constexpr std::uint32_t kRepeated = 1;  // the type of a block of one byte
  // The number of the format, the size in 8 bytes and a window, that of 128 KiB, the size.
  std::vector<std::byte> frame{std::byte{0x28}, std::byte{0xb5}, std::byte{0x2f},
                               std::byte{0xfd}, std::byte{0xc0}, std::byte{0x38}};
  frame.resize(frame.size() + 8);
  store_le(std::span(frame).last(8), size);
  while (size > 0) {
    const auto here = static_cast<std::uint32_t>(std::min(size, kBlock));
    size -= here;
    const std::uint32_t head = here << 3 | kRepeated << 1 | (size == 0 ? 1U : 0U);
    for (unsigned shift = 0; shift < 24; shift += 8) {
      frame.push_back(static_cast<std::byte>(head >> shift));
    }
    frame.push_back(std::byte{0});
  }
  return frame;
}

/// And their CRC-32C behind them.
inline std::vector<std::byte> with_sum(std::vector<std::byte> bytes) {
  const std::uint32_t sum = crc32c({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  bytes.resize(bytes.size() + 4);
  store_le(std::span(bytes).last(4), sum);
  return bytes;
}

}  // namespace ckfs
