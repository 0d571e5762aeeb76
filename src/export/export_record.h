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

/// The record in OUT, in the directory that also has what is being written.
inline constexpr std::string_view kRecordName = ".ckfs-export.d/record.json";

/// What the bytes of an export are a function of.
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
    bool finished = false;     // stands under its final name
    /// Of the steps of the source's order, so many survive one in the temporary file. That has its
    /// full size then; `synced` says how far what lies between the pieces of the steps is there.
    std::uint64_t steps = 0;

    bool operator==(const File&) const = default;
  };

  ExportOrigin origin;

  /// SourceOrder::id; 0: no file has steps.
  std::uint64_t order = 0;

  /// Every file of the view, also those not begun: these names are the export's own.
  std::map<std::string, File> files;

  bool operator==(const ExportRecord&) const = default;
};

/// Where a file is until it is complete: ".ckfs-export.d/NUMBER.part", by its place among the files
/// of the record. No name of a view comes into it, so no two files can have the same one, and none
/// that of a file of the view.
std::string part_name(std::size_t number);

/// Whether a path is the export's own directory or below it.
bool is_own_path(std::string_view path);

/// True for a path that stays inside the directory it is relative to.
bool is_inner_path(std::string_view path);

/// The members of an object: names, and values as JSON.
using JsonMembers = std::vector<std::pair<std::string_view, std::string>>;
/// Members "version", "fingerprint", "view" and "layout_version", with which every record begins.
JsonMembers origin_members(const ExportOrigin& origin);
/// The object, a member a line.
std::string json_object(const JsonMembers& members);
/// `text` as a JSON string. What is not UTF-8 becomes U+FFFD: a host may have any name, and what
/// has to come back as it is goes through to_ascii().
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
