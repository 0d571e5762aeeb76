// OUT/.ckfs-export.d/record.json: what an unfinished export has written so far, and from what. A
// finished export has a mark in its place. Values; the functions are pure.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "source/source_tree.h"

namespace ckfs {

/// The record in OUT. Its directory also holds the files that are being written.
inline constexpr std::string_view kRecordName = ".ckfs-export.d/record.json";

/// The bytes of an export are a function of these.
struct ExportOrigin {
  std::uint64_t fingerprint = 0;
  std::string view;
  int layout_version = 0;

  bool operator==(const ExportOrigin&) const = default;
};

struct ExportRecord {
  struct File {
    std::uint64_t size = 0;    // of the finished file
    std::uint64_t synced = 0;  // bytes of the temporary file that survive a power failure
    bool finished = false;     // has its final name
    /// How many steps of the source's order survive a power failure in the temporary file. That
    /// file then has its full size; `synced` counts only bytes between the pieces of the steps.
    std::uint64_t steps = 0;

    bool operator==(const File&) const = default;
  };

  ExportOrigin origin;

  /// SourceOrder::id; 0: no file has steps.
  std::uint64_t order = 0;

  /// Every file of the view, also those not begun. These names are the export's own.
  std::map<std::string, File> files;

  bool operator==(const ExportRecord&) const = default;
};

/// The name of a file until it is complete: ".ckfs-export.d/NUMBER.part", where NUMBER is its index
/// among the files of the record. Names of the view do not come into it, so none can clash.
std::string part_name(std::size_t number);

/// Whether a path is the export's own directory or below it.
bool is_own_path(std::string_view path);

/// Whether a path stays inside the directory that it is relative to.
bool is_inner_path(std::string_view path);

/// The members of an object: names, and values as JSON.
using JsonMembers = std::vector<std::pair<std::string_view, std::string>>;
/// Members "version", "fingerprint", "view" and "layout_version", with which every record begins.
JsonMembers origin_members(const ExportOrigin& origin);
/// The object, a member a line.
std::string json_object(const JsonMembers& members);
/// `text` as a JSON string. Bytes that are not UTF-8 become U+FFFD: for names of hosts, which may
/// be anything.
std::string json_quoted(std::string_view text);
/// nullopt: not such members, or of another version of records.
std::optional<ExportOrigin> origin_of(const nlohmann::json& json);

/// The mark of a finished export, and of each of its files (OutDirectory::mark()): one line of JSON
/// with the members of origin_members().
std::string mark_text(const ExportOrigin& origin);
/// nullopt: not such a mark.
std::optional<ExportOrigin> parse_mark(std::string_view text);

std::string to_json(const ExportRecord& record);

/// Errors: InvalidArgument (not such a record).
Result<ExportRecord> parse_record(std::string_view text);

}  // namespace ckfs
