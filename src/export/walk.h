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

struct WalkHooks {
  /// Whether to stop: an error Stopped.
  std::function<bool()> ends;
  /// So many more bytes are written.
  std::function<void(std::uint64_t bytes)> advance;
  /// Whether a piece of that step has to be written: as it was at the begin, whenever it is asked.
  std::function<bool(std::size_t step, const ExportStep& piece)> wanted;
  /// A file that pieces are written to, any of them at any offset; it is there, of its full size.
  std::function<Result<OutFile>(std::size_t file)> open;
  /// The first so many steps survive a power failure.
  std::function<Result<void>(std::size_t steps)> synced;
  std::uint64_t sync_step = 4 * kSyncStep;  // bytes; smaller ones are for tests
  std::size_t jobs = 1;                     // pieces written at a time
};

/// Of a step that is done the decoded chunks are forgotten. Several steps may be under way, no more
/// than threads. Hooks are called by several threads at once. Errors: those of reading, writing and
/// of the hooks; what was done before one is synced, if that can be: after a sync that failed none
/// is tried. Requires: a checkpoint with chunks.
Result<void> write_in_order(const View& view, const SourceOrder& order, const WalkHooks& hooks);

/// Writes what of a file of the view lies in `part`, from byte `from` of the file on, as
/// write_range() does. Nothing of the file beside the part is read, not even ahead. Requires: what
/// part_of() does.
Result<void> write_part(const View& view, const ExportStep& part, std::uint64_t from,
                        OutFile& target, const WriteHooks& hooks);

}  // namespace ckfs
