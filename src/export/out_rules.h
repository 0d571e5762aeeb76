// What every export checks before it writes, and does when it ends: may OUT be here, may its record
// be believed, does it hold foreign files or another export.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <ckfs/checkpoint.h>

#include "export/export_record.h"
#include "export/out_directory.h"

namespace ckfs {

/// The turn in which a file gets its name: after all files of lower turns have theirs for good. So
/// an OUT whose export ended anywhere does not pass for a whole one (unless it was forced to write
/// over foreign files). 1: files without which loaders do not find the others (an index, Orbax's
/// `_METADATA`). 2: files that make a directory count as complete. 0: all others.
int turn_of(std::string_view path);
inline constexpr int kTurns = 3;

/// Whether bytes of a file in OUT may be written in any order. Tries it with a file `probe`.
/// Requires: its directory is there, and no other process uses that path. Errors: Io (ENOSPC,
/// EDQUOT, EIO: it cannot be tried).
Result<bool> takes_offsets(const OutDirectory& out, const std::string& probe);

/// The record of an export that has written nothing yet. Errors: Corrupt (a path that leaves OUT),
/// Unsupported (a name that is reserved for exports).
Result<ExportRecord> fresh_record(const View& view);

/// Refuses an OUT that is the source, or lies in it. Errors: InvalidArgument.
Result<void> refuse_inside(const std::filesystem::path& out, const View& view);

/// Refuses to write or remove `files` in OUT if one of them is a file of the source. (The source
/// may lie in OUT, for example where an export is to replace the one it reads.) Errors:
/// InvalidArgument.
Result<void> refuse_own_source(const std::filesystem::path& out, const Checkpoint& checkpoint,
                               const ExportRecord& files);

/// Whether OUT's record and marks can be believed: OUT, the folder of exports in it and `record`
/// belong to the caller or to root, and only the caller's own group may write there, too. A planted
/// record could make an export keep unfinished bytes, or remove files. Errors: InvalidArgument
/// (they cannot, and `force` is not set; `remedy` ends the message).
Result<bool> is_trusted(const OutDirectory& out, std::string_view record, bool force,
                        std::string_view remedy);

/// An export that OUT holds.
struct FoundExport {
  ExportRecord record;
  /// Finished, with a mark and without a record in OUT. Of another origin than was asked for, the
  /// record has no files (marked_files()).
  bool is_marked = false;

  bool is_finished() const;
  /// Whether any of its bytes are there.
  bool is_begun() const;
  /// "a finished export of VIEW": for messages.
  std::string text() const;
};

/// The export that OUT holds, by its record, or by the mark of OUT where there is no record. By a
/// mark, a file of `fresh` counts as finished if it has the same mark as OUT. nullopt: OUT holds no
/// export, or, with `force`, none whose record can be read. Errors: InvalidArgument (not such a
/// record), Io.
Result<std::optional<FoundExport>> find_export(const OutDirectory& out, const ExportRecord& fresh,
                                               bool force);

/// The files in OUT with the mark of a finished export of `origin`.
Result<std::map<std::string, ExportRecord::File>> marked_files(const OutDirectory& out,
                                                               const ExportOrigin& origin);

/// Refuses to replace an export of another view, source or layout version, if any of its bytes are
/// there. For exports without ExportOptions::force. Errors: InvalidArgument.
Result<void> refuse_replacing(const OutDirectory& out, const FoundExport& found,
                              const ExportOrigin& asked);

/// Ends an export whose files all have their names for good: marks OUT and the files, then removes
/// what exports keep in OUT. Where OUT's file system keeps no marks, the record stays, and says
/// that all is finished. Errors: those of OutDirectory.
Result<void> close_export(const OutDirectory& out, ExportRecord record, std::int64_t mtime);
/// Removes what a finished export of `origin` keeps in OUT (but the record where OUT has no mark),
/// the fleet last. Another process may do the same at the same time.
Result<void> remove_own_files(const OutDirectory& out, const ExportOrigin& origin,
                              std::int64_t mtime);

/// Refuses files that no export has written. `old` is the record of the export that OUT holds;
/// nullptr: none. Errors: InvalidArgument (there is such a file), and those of listing OUT.
Result<void> refuse_foreign(const OutDirectory& out, const ExportRecord* old);

/// Syncs OUT and the directories that hold files of the record whose turn is below `turns`, and
/// gives them the checkpoint's time. Requires: those files have their names. Errors: those of
/// OutDirectory::sync_directory().
Result<void> close_directories(const OutDirectory& out, const ExportRecord& record, int turns,
                               std::int64_t mtime);

}  // namespace ckfs
