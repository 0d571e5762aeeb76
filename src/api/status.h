// What a mount has done so far, in three forms: .ckfs/status.json (and `ckfs stats --json`), the
// table of `ckfs stats`, and Prometheus' text (.ckfs/metrics). One list of fields serves all three,
// so a counter that is added there appears in each.
//
// All functions are safe for concurrent use.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include <ckfs/checkpoint.h>

#include "base/error.h"

namespace ckfs {

/// Which daemon serves, and where.
struct MountFacts {
  std::string mountpoint;    // absolute
  std::string source;        // as the user named it, absolute
  std::string log;           // a file, "syslog", "stderr"; empty: nowhere
  std::int64_t pid = 0;      // of the daemon
  std::int64_t started = 0;  // seconds since 1970
};

/// An operation that failed.
struct MountError {
  std::string operation;  // "read"
  std::string error;      // the errno's name: "ESTALE"
  std::string kind;       // name(ErrorCode): "stale"

  auto operator<=>(const MountError&) const = default;
};

struct MountErrors {
  std::map<MountError, std::uint64_t> counts;
  struct Last {
    MountError error;
    std::int64_t time = 0;  // seconds since 1970
    std::string message;
  };
  /// The last that is not the caller's own mistake (a write to a file, a listing of a file).
  std::optional<Last> last;
};

/// "io", "stale", "out_of_memory".
std::string_view name(ErrorCode code);

/// .ckfs/status.json and `ckfs stats --json`. `now`: seconds since 1970.
std::string status_json(const Checkpoint& checkpoint, const MountFacts& mount = {},
                        const MountErrors& errors = {}, std::int64_t now = 0);

/// .ckfs/metrics: Prometheus' text format 0.0.4. Every sample has the labels `mount` and `source`.
std::string metrics_text(const Checkpoint& checkpoint, const MountFacts& mount = {},
                         const MountErrors& errors = {});

/// A status.json, parsed and printed again: that of a mount which may not be one of ckfs. Errors:
/// Corrupt (not a status of a version that we know, or members in members, more than 16 deep).
Result<std::string> checked_status(std::string_view status_json);

/// `ckfs stats`: a status.json as a table. Errors: those of checked_status().
Result<std::string> status_text(std::string_view status_json);

/// The rates between two status.json, `seconds` apart, a line each. Errors: those of status_text().
Result<std::string> status_rates(std::string_view before, std::string_view now, double seconds);

/// What of a status.json `ckfs doctor` tells. Errors: those of checked_status().
struct StatusErrors {
  std::uint64_t count = 0;
  bool stale = false;  // a file of the source has changed: reads of it fail until a new mount
  std::string last;    // "2026-11-29 10:00:12 UTC: MESSAGE"; empty: none
  std::string source;
  std::string log;
};
Result<StatusErrors> status_errors(std::string_view status_json);

/// "2026-11-29 10:00:12 UTC", of seconds since 1970.
std::string date_text(std::int64_t time);

}  // namespace ckfs
