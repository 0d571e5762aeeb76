// What every export asks before it writes: may OUT be here, is what it has to be believed, is
// anything in it foreign.
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

/// When a file gets its name: once all those of lower turns have theirs for good, so that an OUT
/// whose export was ended anywhere does not pass for a whole one (but where ExportOptions::force
/// lets it write over files that are not its own). 1: without it loaders do not find the others (an
/// index, Orbax's `_METADATA`); 2: where it is, a directory counts as complete, to loaders or to
/// those who wait for it; 0: all others.
int turn_of(std::string_view path);
inline constexpr int kTurns = 3;

/// Whether bytes of a file in OUT may be written in any order: tried with `probe`, a path that
/// nobody else uses, in a directory that is there. Errors: Io (ENOSPC, EDQUOT, EIO: it cannot be
/// tried).
Result<bool> takes_offsets(const OutDirectory& out, const std::string& probe);

/// The record of an export that has written nothing yet. Errors: Corrupt (a path that would leave
/// OUT), Unsupported (a name that exports keep for themselves).
Result<ExportRecord> fresh_record(const Checkpoint& checkpoint, const View& view);

/// Errors: InvalidArgument: OUT is the source, or lies in it.
Result<void> refuse_inside(const std::filesystem::path& out, const Checkpoint& checkpoint);

/// Errors: InvalidArgument: a file in `files`, which are to be written or removed in OUT, is one of
/// the source (which may lie in OUT, as where one view was exported and another is to take its
/// place).
Result<void> refuse_own_source(const std::filesystem::path& out, const Checkpoint& checkpoint,
                               const ExportRecord& files);

/// Whether what OUT has can be believed: it, and what exports keep in it (their folder, and
/// `record`), belong to the caller or to root, and nobody but the caller's own group may write
/// there. Who can plant a record could have an export take unfinished bytes for finished ones, or
/// remove files. Errors: InvalidArgument (it cannot, unless `force`; `remedy` is what the message
/// ends with).
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

/// The export that OUT holds. Its record counts, and where there is none the mark of OUT: then a
/// file of `fresh` is finished if it has the same mark. nullopt: OUT holds none, or, with `force`,
/// none that can be read. Errors: InvalidArgument (not such a record), Io.
Result<std::optional<FoundExport>> find_export(const OutDirectory& out, const ExportRecord& fresh,
                                               bool force);

/// The files in OUT with the mark of a finished export of `origin`.
Result<std::map<std::string, ExportRecord::File>> marked_files(const OutDirectory& out,
                                                               const ExportOrigin& origin);

/// Refuses to replace an export of another view, source or layout version, of which something is
/// there: that takes ExportOptions::force. Errors: InvalidArgument.
Result<void> refuse_replacing(const OutDirectory& out, const FoundExport& found,
                              const ExportOrigin& asked);

/// Ends an export whose files all have their names for good: marks OUT and the files, then removes
/// what exports keep in OUT. Where OUT's file system keeps no marks, the record stays, and says
/// that all is finished. Errors: those of OutDirectory.
Result<void> close_export(const OutDirectory& out, ExportRecord record, std::int64_t mtime);
/// Removes what exports keep in OUT, all but the record where OUT has no mark; the fleet last. No
/// error where another process does the same.
Result<void> remove_own_files(const OutDirectory& out, std::int64_t mtime);

/// Refuses files that no export has written. `old` is the record of the export that OUT holds;
/// nullptr: none. Errors: InvalidArgument (there is such a file), and those of listing OUT.
Result<void> refuse_foreign(const OutDirectory& out, const ExportRecord* old);

/// The checkpoint's time for OUT and the directories that hold files of the record whose turn is
/// below `turns`; they are on disk then. Requires: those files have been made. Errors: those of
/// OutDirectory::sync_directory().
Result<void> close_directories(const OutDirectory& out, const ExportRecord& record, int turns,
                               std::int64_t mtime);

}  // namespace ckfs
