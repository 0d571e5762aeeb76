#include "chunks/byte_stream.h"

#include <algorithm>
#include <array>

#include "base/stop.h"

namespace ckfs {

std::span<std::byte> WorkSpace::take(std::uint64_t size) {
  constexpr std::uint64_t kAlignment = 64;
  // A size from a file may be any number: compare before rounding or adding.
  constexpr std::uint64_t kMost = std::uint64_t{1} << 48;
  if (size > kMost) {
    missing_ = kMost;
    return {};
  }
  const std::uint64_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  used_ += rounded;
  if (used_ > bytes_.size()) {
    missing_ = std::min(used_, kMost);
    return {};
  }
  return bytes_.subspan(static_cast<std::size_t>(used_ - rounded), static_cast<std::size_t>(size));
}

Failure too_little_work_space() {
  return fail(ErrorCode::OutOfMemory, "decoding a chunk: more memory is needed");
}

Result<void> read_away(ByteStream& stream, std::uint64_t count) {
  std::array<std::byte, std::size_t{64} << 10> scratch;
  while (count > 0) {
    if (stop_asked()) return stopped("decoding a chunk");
    const auto part = std::span(scratch).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(count, scratch.size())));
    CKFS_TRY(const std::size_t read, stream.read(part));
    if (read < part.size()) return {};
    count -= read;
  }
  return {};
}

}  // namespace ckfs
