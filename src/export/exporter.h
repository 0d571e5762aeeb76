// A view as a directory on disk, without FUSE: parallel, atomic per file, resumable.
//
// Written file by file. Where it is better to read compressed chunks of the source in their own
// order, the pieces of all files are written in that order first (source_order.h), then the bytes
// between them.
//
// Files are written under temporary names, fsynced and renamed. While the export runs,
// OUT/.ckfs-export.d/record.json lists the source's fingerprint, the view, the layout version and
// the finished files, and how far each large unfinished file is on the disk (in steps of 64 MiB; in
// the source's order in its steps, 256 MiB at once). A second run with the same source and view
// continues from there. When all is finished, a mark of OUT and of each file replaces the record.
// So OUT holds the view's files alone, and a later run recognises them by the mark.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <stop_token>
#include <string>

#include <ckfs/checkpoint.h>

#include "export/out_directory.h"
#include "export/pieces.h"
#include "export/source_order.h"

namespace ckfs {

struct ExportOptions {
  /// Files written at a time; 0: one for each CPU.
  unsigned jobs = 0;
  /// Replaces an export of another view or source in OUT. Writes beside files that no export wrote:
  /// those with the name of a file of the view are replaced, the others stay. Ignores a record that
  /// cannot be read, or that other users may have written.
  bool force = false;
  /// Ends the export early. The next run continues from there.
  std::stop_token stop{};
  /// Called from several threads, one at a time, with bytes done so far and the total.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};
  // For tests.
  OrderLimits order{};
  std::uint64_t order_sync = 4 * kSyncStep;
  OutSystem system{};
};

struct ExportResult {
  std::uint64_t files = 0;       // written now
  std::uint64_t files_kept = 0;  // finished by an earlier run
  std::uint64_t bytes = 0;       // written now
  std::uint64_t bytes_kept = 0;  // written by an earlier run
  std::string replaced{};        // "a finished export of VIEW"; empty: nothing was replaced
};

/// The members of `ckfs export --json` that come from a result.
nlohmann::ordered_json json_members(const ExportResult& result);

/// Writes the files of `view` into `out`, with the checkpoint's mtime. A file that has its final
/// name is complete, unless two hosts export there at once and OUT's file system has no locks
/// between them. Errors:
///   InvalidArgument: OUT is not a directory, or lies inside the source; a file of the source would
///   be
///     replaced; a symbolic link is in the place of a directory; another export, or ranks, write
///     there; OUT holds what only ExportOptions::force replaces.
///   Io: the disk is full (ENOSPC), or another call failed. NotFound: something that the export has
///     written is gone, or OUT is a link that leads nowhere.
///   Stopped: with the amount that is done.
///   Unsupported: a file of the view has a name that is reserved for exports.
///   Those of ViewFile::read.
Result<ExportResult> export_view(const Checkpoint& checkpoint, const View& view,
                                 const std::filesystem::path& out, const ExportOptions& options);

}  // namespace ckfs
