// A view as a directory on disk, written by several processes on any number of hosts.
//
// Each process computes which bytes are its own (split.h, weight_shares.h) and writes them into
// files that all share (fleet.h). It neither waits for another nor reads bytes that another wrote.
// One that is run again continues where its record ends. When all records are complete, an
// exclusive link chooses one process that gives the files their times and names. The result is that
// of export_view().
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
  /// `force` allows foreign files, and replaces no export.
  ExportOptions common{};
  unsigned rank = 0;
  unsigned world = 1;
  /// How bytes are cut. nullopt: as the other processes do it. The first one then takes weights
  /// where that is best (weight_shares.h), else ranges, if a file in OUT can be written at any
  /// offset.
  std::optional<Split> split{};
  // For tests.
  std::uint64_t sync_step = kSyncStep;
  OutSystem system{};
};

struct RankResult {
  std::uint64_t bytes = 0;  // written now
  /// Of this rank's part, by an earlier run. 0 where that has completed it.
  std::uint64_t bytes_kept = 0;
  /// All files have their names, given by this process or by another.
  bool finished = false;
  /// The parts that are still missing, as a sentence; empty where finished.
  std::string missing;
};

/// Writes the part of one rank, and finishes the export if no other part is missing. Errors: those
/// of export_view(); InvalidArgument (OUT has another view, source, version or number of parts: the
/// message has both; another process writes this rank; other users may write to OUT). Requires:
/// rank < world, world <= kMostRanks (fleet.h).
Result<RankResult> export_rank(const View& view, const std::filesystem::path& out,
                               const RankOptions& options);

/// Gives the files of an export in parts their names, once every rank is complete, as the last rank
/// does by itself. For an export whose last rank was killed at that. Does nothing where all is
/// finished. Never makes OUT. Errors: those of export_rank(); InvalidArgument where a rank is not
/// complete: the message lists what is missing, of 20 ranks at most.
Result<void> finish_export(const View& view, const std::filesystem::path& out,
                           const OutSystem& system = {});

}  // namespace ckfs
