// A range of a view's file to its place in a file in OUT.
#pragma once

#include <cstdint>
#include <functional>

#include <ckfs/checkpoint.h>

#include "base/byte_range.h"
#include "base/units.h"
#include "export/out_directory.h"

namespace ckfs {

/// Of what one write_range() writes, about so much at most is written again after a power failure.
inline constexpr std::uint64_t kSyncStep = 64_MiB;

struct WriteHooks {
  /// Whether to stop (base/stop.h).
  std::function<bool()> ends;
  /// So many more bytes are written.
  std::function<void(std::uint64_t bytes)> advance;
  /// What was written before byte `at` of the target survives a power failure: called now and then,
  /// not at the end.
  std::function<Result<void>(std::uint64_t at)> synced;
  std::uint64_t sync_step = kSyncStep;  // smaller ones are for tests
};

/// Gives the bytes of a range of what is written: all of them.
using ReadBytes = std::function<Result<Bytes>(ByteRange range)>;

/// Writes `range` piece by piece, its first byte at `to`; asks the disk to begin early, and waits
/// for it every sync_step bytes, but not for the last ones. Errors: those of reading, writing and
/// of `synced`; Stopped.
Result<void> write_range(const ReadBytes& read, ByteRange range, OutFile& target, std::uint64_t to,
                         const WriteHooks& hooks);

}  // namespace ckfs
