// OUT/.ckfs-export.json: what an export has written so far, and from what. A value; the functions
// are pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/error.h"
#include "source/source_tree.h"

namespace ckfs {

/// The record's own name in OUT.
inline constexpr std::string_view kRecordName = kExportRecord;

struct ExportRecord {
  struct File {
    std::uint64_t size = 0;    // of the finished file
    std::uint64_t synced = 0;  // bytes of the temporary file that survive a power failure
    bool finished = false;     // stands under its final name

    bool operator==(const File&) const = default;
  };

  // What the bytes are a function of.
  std::uint64_t fingerprint = 0;
  std::string view;
  int layout_version = 0;

  /// Every file of the view, also those not begun: these names are the export's own.
  std::map<std::string, File> files;

  bool same_origin(const ExportRecord& other) const {
    return fingerprint == other.fingerprint && view == other.view &&
           layout_version == other.layout_version;
  }
  bool operator==(const ExportRecord&) const = default;
};

/// "dir/NAME" -> "dir/.NAME.ckfs-part", with a hash in the place of NAME where that is too long a
/// name.
std::string temporary_name(std::string_view path);

/// True for a path that stays inside the directory it is relative to.
bool is_inner_path(std::string_view path);

std::string to_json(const ExportRecord& record);

/// Errors: InvalidArgument (not such a record).
Result<ExportRecord> parse_record(std::string_view text);

}  // namespace ckfs
