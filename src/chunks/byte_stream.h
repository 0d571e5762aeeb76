// The bytes of a stored chunk on their way through its codecs. Each stage pulls some bytes at a
// time from the one before, so a chunk of any size is decoded within a few MiB.
//
// A stage keeps its data in a WorkSpace, whose bytes belong to the caller: no header can make it
// allocate. A stage that needs more than there is says how much, and the caller begins again with
// that, or gives up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"

namespace ckfs {

/// Memory for the stages of one decoder, given out from the front and never returned.
class WorkSpace {
 public:
  explicit WorkSpace(std::span<std::byte> bytes) : bytes_(bytes) {}

  /// `size` bytes, aligned for any type; empty if there are not so many: missing() tells how many
  /// would do.
  std::span<std::byte> take(std::uint64_t size);

  /// Counts bytes that a library allocates by itself.
  bool count(std::uint64_t size) { return take(size).size() == size; }

  /// The size with which every take() would have succeeded; 0: all did.
  std::uint64_t missing() const { return missing_; }

 private:
  std::span<std::byte> bytes_;
  std::uint64_t used_ = 0;
  std::uint64_t missing_ = 0;
};

/// The failure of a stage that found too little; never seen by users (WorkSpace::missing()).
[[nodiscard]] Failure too_little_work_space();

/// Not for concurrent use. After an error the stream must not be used.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  /// The next bytes, as many as `out` takes; fewer only where the stream ends. Errors: those of the
  /// source; Corrupt; Unsupported; OutOfMemory (too_little_work_space); Stopped (this thread is
  /// asked to, while a long read gives no bytes).
  virtual Result<std::size_t> read(std::span<std::byte> out) = 0;

  /// Makes the next read() begin at byte `offset`. Decodes the bytes before it where there is no
  /// other way; begins anew if the stream is past it. Beyond the end the next read() gives nothing,
  /// or is Corrupt. Errors: those of read().
  virtual Result<void> seek(std::uint64_t offset) = 0;
};

/// Moves a stream on by reading: `count` bytes, or to its end.
Result<void> read_away(ByteStream& stream, std::uint64_t count);

}  // namespace ckfs
