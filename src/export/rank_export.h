// A view as a directory on disk, written by several processes, on as many hosts as one likes.
//
// Each computes which part of the bytes is its own (split.h) and writes that into the files of all
// (fleet.h). None waits for another or reads bytes that another wrote; one that is run again goes
// on where its record ends. When all records are complete, one process, which an exclusive link
// chooses, gives the files their times and names. The result is that of export_view(), record and
// all.
#pragma once

#include <filesystem>
#include <optional>

#include <ckfs/checkpoint.h>

#include "export/exporter.h"
#include "export/out_directory.h"
#include "export/pieces.h"
#include "export/split.h"

namespace ckfs {

struct RankOptions {
  /// What is for tests there is not used; `force` is for foreign files alone.
  ExportOptions common{};
  unsigned rank = 0;
  unsigned world = 1;
  /// How bytes are cut; none: what the others do; for the first: ranges, where a file of OUT can be
  /// written at any offset.
  std::optional<Split> split{};
  // For tests.
  std::uint64_t sync_step = kSyncStep;
  OutSystem system{};
};

struct RankResult {
  std::uint64_t bytes = 0;  // written now
  /// Of this rank's part, by an earlier run; 0 where that had completed it.
  std::uint64_t bytes_kept = 0;
  /// The files have their names: this process gave them, or had nothing left to do.
  bool finished = false;
  /// What is missing until then, as a sentence; empty where finished.
  std::string missing;
};

/// Writes the part of one rank, and finishes if it is the last. Errors: those of export_view();
/// InvalidArgument (what is in OUT is of another view, source, version or number of parts: with
/// both facts; a process has this rank already; others may write to OUT). Requires: rank < world,
/// and world <= kMostRanks (fleet.h).
Result<RankResult> export_rank(const Checkpoint& checkpoint, const View& view,
                               const std::filesystem::path& out, const RankOptions& options);

/// Gives the files of an export in parts their names, once every rank is complete, as the last rank
/// does by itself. For an export whose last rank was killed meanwhile. Does nothing where all is
/// finished. Never makes OUT. Errors: those of export_rank(); InvalidArgument where a rank is not
/// complete: the message lists what is missing, of 20 ranks at most.
Result<void> finish_export(const Checkpoint& checkpoint, const View& view,
                           const std::filesystem::path& out, const OutSystem& system = {});

}  // namespace ckfs
