// The part of one rank of an export by several processes: its bytes into files that all share, and
// its record.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "export/fleet.h"
#include "export/out_directory.h"
#include "export/rank_export.h"
#include "export/record_keeper.h"
#include "export/weight_shares.h"

namespace ckfs {

/// The most bytes of a text that a rank reads: a record, or what the ranks have agreed on.
inline constexpr std::size_t kMaxRankText = std::size_t{64} << 20;

/// InvalidArgument: OUT has files of processes that export something else, or otherwise.
Failure another_fleet(const OutDirectory& out, const std::string& difference);

/// The record of a rank. nullopt: it has not begun. Errors: those of OutDirectory; InvalidArgument
/// (its text is not a record; it is another fleet's).
Result<std::optional<RankRecord>> load_rank(const OutDirectory& out, const Fleet& fleet,
                                            unsigned rank);

/// Bytes that the steps write.
std::uint64_t bytes_of(std::span<const SourceStep> steps);

/// Another rank that writes to a file of this one.
struct Sharer {
  unsigned rank = 0;
  std::size_t step = 0;  // the first that does, where the view is cut by weights
};

/// The sharers of each file of one rank. They are few, for parts are cut along one line.
using Sharers = std::map<std::size_t, std::vector<Sharer>>;

/// `steps`: those of each rank.
Sharers sharers_of(std::span<const std::vector<ExportStep>> steps, unsigned rank);
Sharers sharers_of(const WeightShares& shares, unsigned rank);

/// Writes the part of one rank, by threads of its own. For one call of write().
class RankWriter {
 public:
  /// Keeps references to all but the record and the sharers. `shares`: nullptr where the view is
  /// not cut by weights.
  RankWriter(const OutDirectory& out, const View& view, const ExportRecord& files,
             const RankOptions& options, RankRecord record, Sharers sharers,
             const WeightShares* shares);

  /// Writes what is left, and records that the part is complete.
  Result<RankResult> write();

 private:
  /// Bytes that a rank keeps in its record.
  using KeptBytes = decltype(RankRecord::kept);
  /// Steps of a share that one thread writes, and then syncs.
  struct Task {
    std::size_t begin = 0, end = 0;
    std::uint64_t bytes = 0;
  };

  Result<void> write_part(std::size_t number);
  const SourceOrder& order() const { return shares_->ranks[options_.rank]; }
  void add_task(std::size_t step);
  Result<void> write_task(std::size_t number);
  Result<void> write_piece(const ExportStep& piece, OutFile& target, KeptBytes& kept);
  Result<OutFile> open_again(std::size_t file);
  Result<void> record_task(std::size_t number, std::map<std::size_t, OutFile> targets,
                           KeptBytes kept);
  void release(const Task& task) const;
  /// Opens the file that gets the bytes of a file of the view; makes it if it is missing. Errors:
  /// those of OutDirectory; InvalidArgument (it is gone, with bytes that another rank has written).
  Result<OutFile> open_part(std::size_t file, unsigned mode) const;
  Result<void> refuse_removed(std::size_t file, const OutFile& target) const;
  /// Another rank whose record says that it has written bytes of a file. nullopt: none.
  Result<std::optional<unsigned>> find_writer(std::size_t file) const;
  /// Gives back disk that a killed run has reserved and not written: it counts as used.
  void release_unwritten() const;
  bool ends() const { return options_.common.stop.stop_requested(); }
  void advance(std::uint64_t bytes);

  const OutDirectory& out_;
  const View& view_;
  const RankOptions& options_;
  const Sharers sharers_;
  const WeightShares* const shares_;  // nullptr: the view is not cut by weights
  RecordKeeper<RankRecord> keeper_;
  const std::vector<RankRecord::Range> ranges_;  // as they were found
  std::vector<const std::string*> paths_;        // of the view's files
  std::vector<Task> tasks_;
  std::vector<unsigned> modes_;  // of the view's files
  std::uint64_t total_ = 0, kept_ = 0;
  Mutex mutex_;
  std::uint64_t done_ CKFS_GUARDED_BY(mutex_) = 0;
  /// Of each task that has ended and does not count yet: its files.
  std::vector<std::optional<std::map<std::size_t, OutFile>>> ended_ CKFS_GUARDED_BY(mutex_);
  std::size_t first_ CKFS_GUARDED_BY(mutex_) = 0;  // all tasks before count
  Mutex open_mutex_;
  std::set<std::size_t> begun_ CKFS_GUARDED_BY(open_mutex_);  // files that this rank has written to
};

}  // namespace ckfs
