// What every export asks before it writes: may OUT be here, is what it has to be believed, is
// anything in it foreign.
#pragma once

#include <filesystem>
#include <functional>
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

/// The record of an earlier run; nullopt: there is none, or, with `force`, none that can be read.
/// Errors: InvalidArgument (not such a record), Io.
Result<std::optional<ExportRecord>> load_record(const OutDirectory& out, bool force);

/// Refuses files that no export of ours has written. `old` is the record found in OUT. Errors:
/// InvalidArgument (there is one), and those of listing OUT.
Result<void> refuse_foreign(const OutDirectory& out, const std::optional<ExportRecord>& old);

/// The checkpoint's time for OUT and the directories that hold files of the record whose turn is
/// below `turns`; they are on disk then. Requires: those files have been made. Errors: those of
/// OutDirectory::sync_directory().
Result<void> close_directories(const OutDirectory& out, const ExportRecord& record, int turns,
                               std::int64_t mtime);

}  // namespace ckfs
