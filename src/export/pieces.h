// Writes a range of a view's file to its place in a file in OUT.
#pragma once

#include <cstdint>
#include <functional>

#include <ckfs/checkpoint.h>

#include "base/byte_range.h"
#include "base/units.h"
#include "export/out_directory.h"

namespace ckfs {

/// After a power failure one write_range() writes about so many bytes again, at most.
inline constexpr std::uint64_t kSyncStep = 64_MiB;

struct WriteHooks {
  /// Whether to stop (base/stop.h).
  std::function<bool()> ends;
  /// Called with the number of bytes that were written since the last call.
  std::function<void(std::uint64_t bytes)> advance;
  /// Called now and then, but not at the end: bytes before `at` of the target survive a power
  /// failure.
  std::function<Result<void>(std::uint64_t at)> synced;
  std::uint64_t sync_step = kSyncStep;  // smaller ones are for tests
};

/// Reads all bytes of a range.
using ReadBytes = std::function<Result<Bytes>(ByteRange range)>;

/// Writes `range` piece by piece, its first byte at `to`. Asks the disk to begin early. Waits for
/// the disk every sync_step bytes, but not for the last ones. Errors: those of reading, of writing
/// and of `synced`; Stopped.
Result<void> write_range(const ReadBytes& read, ByteRange range, OutFile& target, std::uint64_t to,
                         const WriteHooks& hooks);

}  // namespace ckfs
