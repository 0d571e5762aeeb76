// A view as a directory on disk, without FUSE: parallel, atomic per file, resumable.
//
// File by file; or, where a source of compressed chunks is better read in its own order, first the
// pieces of all files in that order (source_order.h), then what lies between them.
//
// Files are written under temporary names, fsynced and renamed; OUT/.ckfs-export.d/record.json
// lists the source's fingerprint, the view, the layout version, finished files, and for a large
// unfinished file how far it is fsynced (in steps of 64 MiB; of the source's order, in its steps,
// of which 256 MiB are synced at once). A second run with the same source and view goes on from
// there; another source or view starts over.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>

#include <ckfs/checkpoint.h>

#include "export/out_directory.h"
#include "export/pieces.h"
#include "export/source_order.h"

namespace ckfs {

struct ExportOptions {
  /// Files written at a time; 0: one for each CPU.
  unsigned jobs = 0;
  /// Files in OUT that are not this export's own are an error, unless forced: then those with the
  /// name of a file of the view are replaced, and the others left alone. So is a record that cannot
  /// be read, or that others may have written: forced, it is not believed.
  bool force = false;
  /// Ends the export early; what is done is kept for the next run.
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
};

/// Writes the files of `view` into `out`, with the checkpoint's mtime. Errors: InvalidArgument (OUT
/// is no directory, lies inside the source, holds foreign files, a file of the source that would be
/// replaced, a symbolic link in the place of a directory or what ExportOptions::force is for, or is
/// written by another export or by ranks), Io (disk full: ENOSPC), Stopped, NotFound (what it has
/// written is gone, OUT is a link that leads nowhere), Unsupported (a file of the view has a name
/// that exports keep for themselves), and those of ViewFile::read. No file under its final name is
/// ever incomplete: where OUT's file system has locks between hosts, or no two of them export
/// there.
Result<ExportResult> export_view(const Checkpoint& checkpoint, const View& view,
                                 const std::filesystem::path& out, const ExportOptions& options);

}  // namespace ckfs
