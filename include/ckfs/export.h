// Writes a view as a directory on disk: `ckfs export` as a function. Needs no mount. Where errors
// name a remedy, they name the program's option ("--force"), which the member of that name is.
//
//   auto written = ckfs::export_view(*view, "out", {.jobs = 4});
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include <ckfs/checkpoint.h>
#include <ckfs/error.h>

namespace ckfs {

struct ExportOptions {
  /// Files, or pieces of files, written at a time; 0: one for each CPU.
  unsigned jobs = 0;
  /// Replaces an export of another view or source in OUT. Writes beside files that no export wrote:
  /// those with the name of a file of the view are replaced, the others stay. Ignores a record that
  /// cannot be read, or that other users may have written.
  bool force = false;
  /// Ends the export early. The next run continues from there.
  std::stop_token stop{};
  /// Called from several threads, one at a time, with bytes done so far and the total. Bytes of an
  /// earlier run count as done.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};
};

struct ExportResult {
  std::uint64_t files = 0;       // written now
  std::uint64_t files_kept = 0;  // finished by an earlier run
  std::uint64_t bytes = 0;       // written now
  std::uint64_t bytes_kept = 0;  // written by an earlier run
  std::string replaced{};        // "a finished export of VIEW"; empty: nothing was replaced
};

/// Writes the files of `view` into `out`, with the checkpoint's mtime. Makes `out` where it is
/// missing. A file that has its final name is complete, unless two hosts export there at once and
/// OUT's file system has no locks between them. An export that was stopped or killed is continued
/// by the same call. Errors:
///   InvalidArgument: OUT is not a directory, or lies inside the source; a file of the source would
///     be replaced; a symbolic link is in the place of a directory; another export, or ranks, write
///     there; OUT holds what only ExportOptions::force replaces; this is a forked child.
///   Io: the disk is full (ENOSPC), or another call failed. NotFound: something that the export has
///     written is gone, or OUT is a link that leads nowhere.
///   Stopped: with the amount that is done.
///   Unsupported: a file of the view has a name that is reserved for exports.
///   Those of ViewFile::read().
Result<ExportResult> export_view(const View& view, const std::filesystem::path& out,
                                 const ExportOptions& options = {});

}  // namespace ckfs
