// Writes the pieces of a view in the order of its source (source_order.h), by several threads.
#pragma once

#include <cstdint>
#include <functional>

#include <ckfs/checkpoint.h>

#include "base/error.h"
#include "export/out_directory.h"
#include "export/pieces.h"
#include "export/source_order.h"

namespace ckfs {

/// How many of `jobs` threads write pieces in the order of a source. All workers compute a piece
/// together (mostly a matrix), and the next one ahead; with less memory for each, several pieces at
/// once would evict each other's tiles.
std::size_t jobs_in_order(const View& view, std::size_t jobs);

struct OrderHooks {
  /// Whether to stop, with an error Stopped.
  std::function<bool()> ends;
  /// Called with the number of bytes that were written since the last call.
  std::function<void(std::uint64_t bytes)> advance;
  /// Whether a piece of that step has to be written. The answer must not change during the work.
  std::function<bool(std::size_t step, const ExportStep& piece)> wanted;
  /// Opens a file that pieces are written to, at any offset. It has its full size already.
  std::function<Result<OutFile>(std::size_t file)> open;
  /// Called when the first `steps` steps survive a power failure.
  std::function<Result<void>(std::size_t steps)> synced;
  std::uint64_t sync_step = 4 * kSyncStep;  // bytes; smaller ones are for tests
  std::size_t jobs = 1;                     // pieces written at a time
};

/// Writes all pieces. The decoded chunks of a step are dropped when it is done. Several steps may
/// be under way, at most one for each thread. Several threads call the hooks at once. After an
/// error, finished steps are still synced, unless the error was that of a sync. Errors: those of
/// reading, writing and the hooks.
Result<void> write_in_order(const View& view, const SourceOrder& order, const OrderHooks& hooks);

/// Reads the bytes of a view's file that lie in `part`, and nothing else of the file, not even
/// ahead. Ranges of results count from its first byte. The view must outlive it. Requires: what
/// part_of() requires.
Result<ReadBytes> read_part(const View& view, const ExportStep& part);

/// Writes what read_part() reads, from byte `from` of the file on, as write_range() does.
Result<void> write_part(const View& view, const ExportStep& part, std::uint64_t from,
                        OutFile& target, const WriteHooks& hooks);

}  // namespace ckfs
