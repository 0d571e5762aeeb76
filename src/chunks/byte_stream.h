// The bytes of a stored chunk on their way through its codecs: each stage pulls from the one
// before, some at a time, so that a chunk of any size is decoded within a few MiB.
//
// What a stage keeps lies in a WorkSpace, whose bytes are the caller's: nothing is allocated on the
// word of a header. A stage that needs more than there is says how much, and the caller begins
// again with that, or not at all.
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

  /// `size` bytes, aligned for anything; empty where there are not so many: missing() says what it
  /// would take.
  std::span<std::byte> take(std::uint64_t size);

  /// Counts bytes that a library allocates by itself.
  bool count(std::uint64_t size) { return take(size).size() == size; }

  /// What the whole would have to be, had every take() been given; 0: all were.
  std::uint64_t missing() const { return missing_; }

 private:
  std::span<std::byte> bytes_;
  std::uint64_t used_ = 0;
  std::uint64_t missing_ = 0;
};

/// The failure of a stage that found too little; never seen by users (WorkSpace::missing()).
[[nodiscard]] Failure too_little_work_space();

/// Not for concurrent use. After an error the stream is not to be used any more.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  /// The next bytes, as many as `out` takes; fewer only where the stream ends. Errors: those of the
  /// source; Corrupt; Unsupported; OutOfMemory (too_little_work_space); Stopped (this thread is
  /// asked to, while a long read gives no bytes).
  virtual Result<std::size_t> read(std::span<std::byte> out) = 0;

  /// The next read() begins at byte `offset`: by decoding what lies before it where there is no
  /// other way, anew from the beginning if the stream is past it. Beyond the end: the end, or that
  /// read() is Corrupt. Errors: those of read().
  virtual Result<void> seek(std::uint64_t offset) = 0;
};

/// Moves a stream on by reading: `count` bytes, or to its end.
Result<void> read_away(ByteStream& stream, std::uint64_t count);

}  // namespace ckfs
