// What ckfs says of a checkpoint, as text for people and as JSON for programs: what `ckfs inspect`
// and `ckfs ls` print. docs/CLI_ABI.md has the members of the JSON texts; members are only added
// within a version. Reads no tensor.
//
// All functions are safe for concurrent use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <ckfs/checkpoint.h>
#include <ckfs/error.h>

namespace ckfs {

inline constexpr int kReportVersion = 1;

enum class ReportFormat : std::uint8_t { Text, Json };

enum class InspectDetail : std::uint8_t {
  Brief,  // of views that are not available their names alone, unless none but `source` is
  All,    // why they are not
};

/// `ckfs inspect`: what the checkpoint is, which views it can give and how large they are, which
/// not and why, and what to type next. `source` is how the user named it. JSON has all details.
/// Empty in a child that was forked since the checkpoint was opened.
std::string inspect_report(const Checkpoint& checkpoint, std::string_view source,
                           ReportFormat format, InspectDetail detail = InspectDetail::Brief);

/// `ckfs inspect --view`: every tensor of a view with the source's tensors that it is made of, and
/// the source's tensors that are in none. For a view of files as they are, a line that says so.
/// Errors: those of Checkpoint::view.
Result<std::string> view_report(const Checkpoint& checkpoint, std::string_view view,
                                ReportFormat format);

enum class ListDetail : std::uint8_t { Names, Long };

/// `ckfs ls`: the entries at `where`: "" (the available views), "VIEW" or "VIEW/PATH" (a
/// directory's entries, or the one file). Long adds size and exactness to the text; JSON always has
/// them.
/// Errors: those of Checkpoint::view, NotFound.
Result<std::string> list_report(const Checkpoint& checkpoint, std::string_view where,
                                ListDetail detail, ReportFormat format);

/// What reading a view takes: bytes on other machines that a reader of all files of the view needs,
/// each counted once; 0: all is on this machine. Of a stored array that is shown in part, all
/// counts; what a disk cache has counts, too. 0 in a forked child.
std::uint64_t bytes_elsewhere(const View& view);

}  // namespace ckfs
