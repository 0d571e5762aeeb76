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
#include <nlohmann/json_fwd.hpp>

#include <ckfs/checkpoint.h>
#include <ckfs/export.h>

#include "export/out_directory.h"
#include "export/pieces.h"
#include "export/source_order.h"

namespace ckfs {

struct SerialOptions {
  ExportOptions common{};
  // For tests.
  OrderLimits order{};
  std::uint64_t order_sync = 4 * kSyncStep;
  OutSystem system{};
};

/// export_view() with the options of tests. Errors: the same.
Result<ExportResult> export_serial(const View& view, const std::filesystem::path& out,
                                   const SerialOptions& options);

/// The members of `ckfs export --json` that come from a result.
nlohmann::ordered_json json_members(const ExportResult& result);

}  // namespace ckfs
