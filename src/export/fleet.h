// What processes that write one OUT together agree on, and what each of them has done. Values and
// their JSON. The functions are pure.
//
// OUT/.ckfs-export.d then has fleet.json, which the first process writes and no other changes. Each
// process has a record (rank-R.json) and a lock (rank-R.lock). All of them write into the files
// NUMBER.part, as an export by one process does.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "export/export_record.h"
#include "export/split.h"

namespace ckfs {

inline constexpr std::string_view kFleetName = ".ckfs-export.d/fleet.json";
/// Names the process that renames the files: an exclusive link decides which.
inline constexpr std::string_view kFinisherName = ".ckfs-export.d/finisher.json";
/// The most processes.
inline constexpr unsigned kMostRanks = 65536;

struct Fleet {
  ExportOrigin origin;
  unsigned world = 1;  // how many processes
  Split split = Split::Ranges;

  bool operator==(const Fleet&) const = default;
};

/// "view a, not b; 8 parts, not 4": how `there` differs from `here`. Empty where they are equal.
std::string difference(const Fleet& there, const Fleet& here);

/// What one process has written.
struct RankRecord {
  struct Range {
    ExportStep step;
    std::uint64_t synced = 0;  // offset in the file: bytes before it survive a power failure

    bool operator==(const Range&) const = default;
  };

  Fleet fleet;
  unsigned rank = 0;
  std::string host;  // where it ran, for messages
  bool complete = false;
  std::vector<Range> ranges;  // none once it is complete

  /// Of a fleet whose view is cut by weights: identifies what the process writes
  /// (SourceOrder::id), and how many steps of it survive a power failure. 0: cut otherwise.
  std::uint64_t order = 0;
  std::uint64_t steps = 0;
  std::uint64_t left = 0;  // bytes of the other steps
  /// File and offset -> bytes of pages that others write to, too (weight_shares.h). The process
  /// that finishes the export writes them.
  std::map<std::pair<std::size_t, std::uint64_t>, std::string> kept{};

  bool operator==(const RankRecord&) const = default;
};

std::string rank_record_name(unsigned rank);
std::string rank_lock_name(unsigned rank);

std::string to_json(const Fleet& fleet);
std::string to_json(const RankRecord& record);

/// Errors: InvalidArgument (not such a text).
Result<Fleet> parse_fleet(std::string_view text);
Result<RankRecord> parse_rank_record(std::string_view text);

}  // namespace ckfs
