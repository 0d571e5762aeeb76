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

/// Writes the bytes of a view's file that lie in `part`, from byte `from` of the file on, as
/// write_range() does. Reads nothing else of the file, not even ahead. Requires: what part_of()
/// requires.
Result<void> write_part(const View& view, const ExportStep& part, std::uint64_t from,
                        OutFile& target, const WriteHooks& hooks);

}  // namespace ckfs
