// A view as a directory on disk, without FUSE: parallel, atomic per file, resumable.
//
// File by file; or, where a source of compressed chunks is better read in its own order, first the
// pieces of all files in that order (source_order.h), then what lies between them.
//
// Files are written under temporary names, fsynced and renamed. While the export runs,
// OUT/.ckfs-export.d/record.json lists the source's fingerprint, the view, the layout version and
// the finished files, and how far each large unfinished file is on the disk (in steps of 64 MiB; in
// the source's order in its steps, 256 MiB at once). A second run with the same source and view
// goes on from there. When all is finished, the record is replaced by a mark of OUT and of each
// file, so that OUT holds the view's files alone; a later run recognises them by it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
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
  /// Goes on where OUT holds an export of another view or source, which is replaced; or files that
  /// no export wrote: those with the name of a file of the view are replaced, the others stay; or a
  /// record that cannot be read, or that others may have written, which is not believed then.
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
  std::uint64_t bytes_kept = 0;  // written by an earlier run
  std::string replaced{};        // "a finished export of VIEW"; empty: nothing was replaced
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
