// A rank may be run again while another one finishes. The order of looking decides such races: OUT
// gets its mark (or record.json) before any rank's record goes, and a rank looks for the mark after
// it has looked for its own record. So a rank whose record is gone finds that all is finished.
#include "export/rank_export.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <random>
#include <spdlog/spdlog.h>
#include <thread>
#include <unistd.h>

#include "api/inside.h"
#include "base/mutex.h"
#include "base/parallel.h"
#include "base/size_text.h"
#include "base/stop.h"
#include "export/fleet.h"
#include "export/out_rules.h"
#include "export/record_keeper.h"

namespace ckfs {

namespace {

constexpr std::size_t kMaxText = 64_MiB;
/// Processes believe each other's records.
constexpr std::string_view kOwnOut = "several processes need an OUT that only their user writes";
/// The most ranks that a message names one by one.
constexpr std::size_t kMostNamed = 20;

std::string host_name() {
  std::array<char, 256> name{};
  (void)::gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// Whether OUT has a finished export of `fresh`. Errors: InvalidArgument (it has another export).
Result<bool> is_finished(const OutDirectory& out, const ExportRecord& fresh) {
  CKFS_TRY(const std::optional<FoundExport> found, find_export(out, fresh, false));
  if (!found) return false;
  const std::string other = difference({found->record.origin, 1, {}}, {fresh.origin, 1, {}});
  if (!other.empty()) {
    return fail(ErrorCode::InvalidArgument,
                "{}: holds {}: {} (several processes replace nothing: give another OUT)",
                out.name(), found->text(), other);
  }
  if (found->is_finished()) return true;
  return fail(ErrorCode::InvalidArgument,
              "{}: one process has begun to export here (the same command without --rank and "
              "--distributed continues it)",
              out.name());
}

/// The first file of a finished export that is missing or was changed since.
std::optional<std::string> lost_file(const OutDirectory& out, const ExportRecord& files,
                                     std::int64_t mtime) {
  for (const auto& [path, file] : files.files) {
    const auto entry = out.entry(path);
    if (!entry || !entry->regular || entry->size != file.size || entry->mtime != mtime) return path;
  }
  return std::nullopt;
}

Result<void> refuse_lost(const OutDirectory& out, const ExportRecord& files, std::int64_t mtime) {
  const std::optional<std::string> lost = lost_file(out, files, mtime);
  if (!lost) return {};
  return fail(ErrorCode::InvalidArgument,
              "{}: is a finished export whose \"{}\" is gone or changed (without --rank it is "
              "written again)",
              out.name(), *lost);
}

/// What the ranks have agreed on. nullopt: nothing yet.
Result<std::optional<Fleet>> load_fleet(const OutDirectory& out) {
  CKFS_TRY(const auto text, out.read_text(std::string(kFleetName), kMaxText));
  if (!text) return std::nullopt;
  const Result<Fleet> fleet = parse_fleet(*text);
  if (!fleet) return Failure(fleet.error().within(out.name()));
  return *fleet;
}

Failure another_fleet(const OutDirectory& out, const std::string& difference) {
  return fail(ErrorCode::InvalidArgument,
              "{}: other processes export here {} (wait until they end, or remove {}/{})",
              out.name(), difference, out.name(), kExportFolder);
}

/// Joins the processes that write here, or is the first of them. nullopt: they have just finished.
Result<std::optional<Fleet>> join(const OutDirectory& out, const ExportRecord& files,
                                  const RankOptions& options) {
  Fleet fleet{.origin = files.origin,
              .world = options.world,
              .split = options.split.value_or(Split::Ranges)};
  for (;;) {
    CKFS_TRY(const std::optional<Fleet> there, load_fleet(out));
    if (there) {
      if (!options.split) fleet.split = there->split;
      const std::string other = difference(*there, fleet);
      if (!other.empty()) return another_fleet(out, other);
      return fleet;
    }
    // The export is marked as finished before the fleet is removed.
    CKFS_TRY(const bool finished, is_finished(out, files));
    if (finished) return std::nullopt;
    if (!options.common.force) CKFS_TRY_VOID(refuse_foreign(out, nullptr));
    // Pods may share a host's name and have the same numbers.
    std::random_device random;
    const std::string probe =
        fmt::format("{}/probe.{}.{:08x}{:08x}", kExportFolder, host_name(), random(), random());
    if (!options.split) {
      CKFS_TRY(const bool any_order, takes_offsets(out, probe));
      fleet.split = any_order ? Split::Ranges : Split::Files;
    }
    CKFS_TRY(const bool first, out.put_text(std::string(kFleetName), to_json(fleet)));
    if (!first) continue;
    CKFS_TRY(const bool finished_meanwhile, is_finished(out, files));
    if (finished_meanwhile) return std::nullopt;
    return fleet;
  }
}

/// The record of a rank. nullopt: it has not begun.
Result<std::optional<RankRecord>> load_rank(const OutDirectory& out, const Fleet& fleet,
                                            unsigned rank) {
  const std::string name = rank_record_name(rank);
  CKFS_TRY(const auto text, out.read_text(name, kMaxText));
  if (!text) return std::nullopt;
  Result<RankRecord> record = parse_rank_record(*text);
  if (!record) return Failure(record.error().within(out.name() + "/" + name));
  const std::string other = difference(record->fleet, fleet);
  if (!other.empty()) return another_fleet(out, other);
  return *std::move(record);
}

/// What the ranks have still to write, each with its number; empty where all are complete.
Result<std::string> missing_parts(const OutDirectory& out, const Fleet& fleet, unsigned first) {
  std::vector<std::string> lines;
  for (unsigned k = 0; k < fleet.world; ++k) {
    const unsigned rank = (first + k) % fleet.world;
    CKFS_TRY(const auto record, load_rank(out, fleet, rank));
    if (record && record->complete) continue;
    if (lines.size() == kMostNamed) {
      lines.emplace_back("and more");
      break;
    }
    if (!record) {
      lines.push_back(fmt::format("rank {} has not begun", rank));
      continue;
    }
    std::uint64_t left = 0;
    for (const auto& part : record->ranges) left += part.step.range.end - part.synced;
    lines.push_back(fmt::format("rank {} has {} left to write (it ran on {})", rank,
                                human_size(left), record->host));
  }
  return fmt::format("{}", fmt::join(lines, ", "));
}

/// Whether `done` succeeded. False where its file is gone, because another process finishes at the
/// same time.
template <typename T>
Result<bool> unless_gone(const Result<T>& done) {
  if (done) return true;
  if (done.error().code() == ErrorCode::NotFound) return false;
  return Failure(done.error());
}

/// Gives each file its time and its name. Keeps what an earlier call has done, or what another
/// process does at the same time: a part that is gone has become its file.
Result<void> name_files(const OutDirectory& out, const View& view, const ExportRecord& record,
                        std::int64_t mtime) {
  struct Named {
    const std::string* path;
    std::uint64_t size;
    std::string part;
    int turn;
  };
  std::map<std::string_view, unsigned> modes_of_empty;
  for (const FileInfo& file : view.files()) {
    if (file.size == 0) modes_of_empty.emplace(file.path, mode_of_copy(file.readers));
  }
  std::vector<Named> files;
  for (const auto& [path, file] : record.files) {
    files.push_back({&path, file.size, part_name(files.size()), turn_of(path)});
  }
  std::ranges::stable_sort(files, {}, &Named::turn);
  int turn = 0;
  for (const Named& file : files) {
    if (file.turn != turn) CKFS_TRY_VOID(close_directories(out, record, file.turn, mtime));
    turn = file.turn;
    const auto part = out.entry(file.part);
    if (part && part->size != file.size) {
      return fail(ErrorCode::InvalidArgument, "{}/{}: has {} bytes, not the {} of {}", out.name(),
                  file.part, part->size, file.size, *file.path);
    }
    const auto is_done = [&] {
      const auto done = out.entry(*file.path);
      return done && done->regular && done->size == file.size && done->mtime == mtime;
    };
    if (!part && is_done()) continue;
    CKFS_TRY_VOID(out.make_parents(*file.path));
    // Only an empty file may be made here: it would get the name of a whole one.
    Result<OutFile> target = file.size == 0
                                 ? out.open_shared(file.part, modes_of_empty.at(*file.path))
                                 : out.reopen(file.part);
    CKFS_TRY(bool there, unless_gone(target));
    if (there) {
      CKFS_TRY_VOID(target->set_mtime(mtime));
      CKFS_TRY_VOID(target->sync());
      CKFS_TRY(there, unless_gone(out.rename(file.part, *file.path)));
    }
    if (!there && !is_done()) {
      return fail(ErrorCode::InvalidArgument,
                  "{}/{}: is gone, with the bytes of {} (remove {}/{} and begin again)", out.name(),
                  file.part, *file.path, out.name(), kExportFolder);
    }
  }
  return {};
}

/// Requires: all ranks are complete. Another process that finishes at the same time may remove what
/// this one writes, also a new record before it has its name. The files are whole, whichever of the
/// two gave them their names.
Result<void> finish(const OutDirectory& out, const View& view, ExportRecord record,
                    std::int64_t mtime) {
  CKFS_TRY_VOID(name_files(out, view, record, mtime));
  // Before the export counts as finished: a name that a power failure takes back is not looked for
  // again.
  CKFS_TRY_VOID(close_directories(out, record, kTurns, mtime));
  const Result<void> closed = close_export(out, record, mtime);
  if (closed) return closed;
  CKFS_TRY(const bool finished, is_finished(out, record));
  return finished ? remove_own_files(out, record.origin, mtime) : closed;
}

/// The other ranks that write to each file of one rank. They are few, for parts are cut along one
/// line.
using Sharers = std::map<std::size_t, std::vector<unsigned>>;

/// Writes the part of one rank.
class RankWriter {
 public:
  RankWriter(const OutDirectory& out, const View& view, const ExportRecord& files,
             const RankOptions& options, RankRecord record, Sharers sharers)
      : out_(out),
        view_(view),
        options_(options),
        sharers_(std::move(sharers)),
        keeper_(std::move(record),
                [&out](const RankRecord& now) {
                  return out.replace_text(rank_record_name(now.rank), to_json(now));
                }),
        ranges_(keeper_.copy().ranges) {
    for (const auto& [path, file] : files.files) paths_.push_back(&path);
    for (const auto& part : ranges_) {
      total_ += part.step.range.size();
      done_ += part.synced - part.step.range.begin;
    }
    kept_ = done_;
  }

  /// Writes what is left, and records that the part is complete.
  Result<RankResult> write();

 private:
  Result<void> write_part(std::size_t number);
  /// Opens the file that gets the bytes of a file of the view; makes it if it is missing. Errors:
  /// those of OutDirectory; InvalidArgument (it is gone, with bytes that another rank has written).
  Result<OutFile> open_part(std::size_t file, unsigned mode) const;
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
  RecordKeeper<RankRecord> keeper_;
  const std::vector<RankRecord::Range> ranges_;  // as they were found
  std::vector<const std::string*> paths_;        // of the view's files
  std::uint64_t total_ = 0, kept_ = 0;
  Mutex mutex_;
  std::uint64_t done_ CKFS_GUARDED_BY(mutex_) = 0;
};

void RankWriter::advance(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  done_ += bytes;
  if (options_.common.progress) options_.common.progress(done_, total_);
}

Result<std::optional<unsigned>> RankWriter::find_writer(std::size_t file) const {
  // No copy of the whole record: it has an entry for each file, and this is called for each file.
  const Fleet fleet = keeper_.look([](const RankRecord& record) { return record.fleet; });
  for (const unsigned rank : sharers_.at(file)) {
    CKFS_TRY(const auto record, load_rank(out_, fleet, rank));
    if (!record) continue;
    const bool has_written =
        record->complete || std::ranges::any_of(record->ranges, [&](const RankRecord::Range& part) {
          return part.step.file == file && part.synced > part.step.range.begin;
        });
    if (has_written) return rank;
  }
  return std::nullopt;
}

Result<OutFile> RankWriter::open_part(std::size_t file, unsigned mode) const {
  const std::string name = part_name(file);
  Result<OutFile> there = out_.reopen(name);
  if (there || there.error().code() != ErrorCode::NotFound) return there;
  CKFS_TRY(const std::optional<unsigned> writer, find_writer(file));
  if (writer) {
    // A network file system may have cached that there is no such name. Making a link asks its
    // server.
    CKFS_TRY(const bool gone, out_.put_text(name, ""));
    if (gone) {
      CKFS_TRY_VOID(out_.remove(name));
      return fail(ErrorCode::InvalidArgument,
                  "{}/{}: is gone, with what rank {} has written of {} (remove {}/{} and begin "
                  "again)",
                  out_.name(), name, *writer, *paths_[file], out_.name(), kExportFolder);
    }
  }
  return out_.open_shared(name, mode);
}

Result<void> RankWriter::write_part(std::size_t number) {
  const RankRecord::Range& part = ranges_[number];
  std::uint64_t synced = part.synced;
  const ByteRange left{synced, part.step.range.end};
  if (left.empty()) return {};
  CKFS_TRY(ViewFile source, view_.open(*paths_[part.step.file], {.whole = true, .once = true}));
  CKFS_TRY(OutFile target, open_part(part.step.file, mode_of_copy(source.info().readers)));
  const auto record = [&](std::uint64_t at) -> Result<void> {
    // Other ranks believe the record, and would make a new file in the place of one that is gone.
    if (!out_.is_at(part_name(part.step.file), target)) {
      return fail(ErrorCode::InvalidArgument, "{}: was removed while rank {} wrote it",
                  target.thing(), options_.rank);
    }
    synced = at;
    keeper_.change([&](RankRecord& now) { now.ranges[number].synced = at; });
    return {};
  };
  const auto read = [&](ByteRange range) { return lend(source, range.begin, range.size()); };
  const Result<void> written = or_out_of_memory([&]() -> Result<void> {
    CKFS_TRY_VOID(target.reserve(left));
    CKFS_TRY_VOID(write_range(read, left, target, left.begin,
                              {.ends = [&] { return ends(); },
                               .advance = [&](std::uint64_t bytes) { advance(bytes); },
                               .synced = [&](std::uint64_t at) -> Result<void> {
                                 const Result<void> recorded = record(at);
                                 return recorded ? keeper_.store() : recorded;
                               },
                               .sync_step = options_.sync_step}));
    CKFS_TRY_VOID(target.sync());
    return record(left.end);
  });
  if (!written) {
    target.release({synced, left.end});
    return written;
  }
  return left.size() >= options_.sync_step ? keeper_.store()
                                           : keeper_.store_at_times(kRecordInterval);
}

void RankWriter::release_unwritten() const {
  for (const RankRecord::Range& part : ranges_) {
    const std::string name = part_name(part.step.file);
    if (!out_.entry(name)) continue;
    // The file is there and has its mode already, which this does not change.
    auto target = out_.open_shared(name, 0600);
    if (target) target->release({part.synced, part.step.range.end});
  }
}

Result<RankResult> RankWriter::write() {
  CKFS_TRY_VOID(keeper_.store());
  const auto no_space = [&] {
    return Failure(Error(
        ErrorCode::Io,
        fmt::format("{}: no space left: rank {} needs {}, {} free", out_.name(), options_.rank,
                    human_size(total_ - kept_), human_size(out_.free_bytes().value_or(0))),
        ENOSPC));
  };
  const auto fits = [&] { return total_ - kept_ <= out_.free_bytes().value_or(total_); };
  if (!fits()) {
    release_unwritten();
    if (!fits()) return no_space();
  }
  const StopScope scope(options_.common.stop);
  const std::size_t cpus = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t jobs = options_.common.jobs == 0 ? cpus : options_.common.jobs;
  const Result<void> written = run_parallel(ranges_.size(),
                                            [&](std::size_t number) -> Result<void> {
                                              // What follows a failure is not run; what runs beside
                                              // it comes to its end.
                                              return write_part(number);
                                            },
                                            {.few = jobs, .most = jobs});
  if (!written) {
    (void)keeper_.store();
    if (written.error().system_error() == ENOSPC) return no_space();
    if (written.error().code() != ErrorCode::Stopped) return Failure(written.error());
    const MutexLock lock(mutex_);
    return fail(ErrorCode::Stopped,
                "{}: rank {} interrupted after {} of {} (the same command continues from there)",
                out_.name(), options_.rank, human_size(done_), human_size(total_));
  }
  keeper_.change([](RankRecord& now) {
    now.complete = true;
    now.ranges.clear();
  });
  CKFS_TRY_VOID(keeper_.store());
  RankResult result;
  result.bytes = total_ - kept_;
  result.bytes_kept = kept_;
  return result;
}

Sharers sharers_of(std::span<const std::vector<ExportStep>> steps, unsigned rank) {
  Sharers sharers;
  for (const ExportStep& step : steps[rank]) sharers[step.file];
  for (unsigned other = 0; other < steps.size(); ++other) {
    if (other == rank) continue;
    for (const ExportStep& step : steps[other]) {
      const auto shared = sharers.find(step.file);
      if (shared != sharers.end()) shared->second.push_back(other);
    }
  }
  return sharers;
}

/// The record that a rank begins with, or continues.
Result<RankRecord> begin_rank(const OutDirectory& out, const Fleet& fleet,
                              std::span<const ExportStep> steps, unsigned rank,
                              std::optional<RankRecord> found) {
  RankRecord record{
      .fleet = fleet, .rank = rank, .host = host_name(), .complete = false, .ranges = {}};
  for (const ExportStep& step : steps) {
    record.ranges.push_back({.step = step, .synced = step.range.begin});
  }
  if (!found) return record;
  if (!std::ranges::equal(found->ranges, record.ranges, {}, &RankRecord::Range::step,
                          &RankRecord::Range::step)) {
    return fail(ErrorCode::InvalidArgument,
                "{}/{}: written by a version of ckfs that divides work differently (remove {}/{} "
                "and begin again)",
                out.name(), rank_record_name(rank), out.name(), kExportFolder);
  }
  record.ranges = std::move(found->ranges);
  // A file that is gone has nothing on the disk, whatever the record says.
  for (RankRecord::Range& part : record.ranges) {
    const auto entry = out.entry(part_name(part.step.file));
    if (!entry || !entry->regular || entry->size < part.synced) {
      part.synced = part.step.range.begin;
    }
  }
  return record;
}

/// Removes what this rank has left since the others finished, or what one left that was killed
/// while it finished.
Result<RankResult> finished_rank(const OutDirectory& directory, const ExportOrigin& origin,
                                 RankResult result, std::int64_t mtime) {
  CKFS_TRY_VOID(remove_own_files(directory, origin, mtime));
  result.finished = true;
  result.missing.clear();
  return result;
}

Result<RankResult> take_part(const Checkpoint& checkpoint, const View& view,
                             const ExportRecord& files, const OutDirectory& directory,
                             const RankOptions& options) {
  CKFS_TRY_VOID(directory.make_parents(std::string(kFleetName)));
  CKFS_TRY(const UniqueFd lock, directory.lock(rank_lock_name(options.rank)));
  if (!lock) {
    return fail(ErrorCode::InvalidArgument, "{}: another process writes rank {} of {}",
                directory.name(), options.rank, options.world);
  }
  const auto finished = [&](RankResult result) {
    return finished_rank(directory, files.origin, std::move(result), checkpoint.mtime());
  };
  CKFS_TRY(const std::optional<Fleet> joined, join(directory, files, options));
  if (!joined) return finished({});
  const Fleet& fleet = *joined;
  CKFS_TRY(auto record, load_rank(directory, fleet, options.rank));
  RankResult result;
  const auto is_over = [&] { return is_finished(directory, files); };
  if (!record || !record->complete) {
    CKFS_TRY(const bool over, is_over());
    if (over) return finished({});
    CKFS_TRY(const std::vector<FileCost> costs, file_costs(view));
    const auto steps = split_steps(costs, fleet.world, fleet.split);
    CKFS_TRY(RankRecord begun,
             begin_rank(directory, fleet, steps[options.rank], options.rank, std::move(record)));
    CKFS_TRY(result, RankWriter(directory, view, files, options, std::move(begun),
                                sharers_of(steps, options.rank))
                         .write());
  }
  CKFS_TRY(result.missing, missing_parts(directory, fleet, options.rank));
  if (!result.missing.empty()) {
    // Perhaps because another rank has just finished and removed the records.
    CKFS_TRY(const bool over, is_over());
    return over ? finished(std::move(result)) : result;
  }
  const std::string me = fmt::format("rank {} on {}", options.rank, host_name());
  const auto put = directory.put_text(std::string(kFinisherName), me);
  const auto read = directory.read_text(std::string(kFinisherName), kMaxText);
  // The chosen rank may have finished since, and removed these files with the rest.
  CKFS_TRY(const bool over, is_over());
  if (over) return finished(std::move(result));
  CKFS_TRY(const bool chosen, put);
  CKFS_TRY(const auto finisher, read);
  // A rank that is run again may find that it is the one that was chosen.
  if (!chosen && finisher && !finisher->starts_with(fmt::format("rank {} ", options.rank))) {
    result.missing = fmt::format("{} gives the files their names", *finisher);
    return result;
  }
  CKFS_TRY_VOID(finish(directory, view, files, checkpoint.mtime()));
  result.finished = true;
  return result;
}

}  // namespace

Result<RankResult> export_rank(const View& view, const std::filesystem::path& out,
                               const RankOptions& options) {
  CKFS_CHECK(options.rank < options.world);
  CKFS_TRY_VOID(check_process(view));
  const Checkpoint checkpoint = view.checkpoint();
  CKFS_TRY_VOID(refuse_inside(out, view));
  CKFS_TRY(const ExportRecord files, fresh_record(view));
  CKFS_TRY_VOID(refuse_own_source(out, checkpoint, files));
  CKFS_TRY(const OutDirectory directory,
           OutDirectory::open(out, options.system, Others::OfOneFleet));
  // Ranks believe each other's records, so --force does not help where other users may write.
  CKFS_TRY_VOID(is_trusted(directory, kFleetName, false, kOwnOut));
  CKFS_TRY(const bool before, is_finished(directory, files));
  if (before) {
    CKFS_TRY(const RankResult finished,
             finished_rank(directory, files.origin, {}, checkpoint.mtime()));
    CKFS_TRY_VOID(refuse_lost(directory, files, checkpoint.mtime()));
    return finished;
  }
  Result<RankResult> result = take_part(checkpoint, view, files, directory, options);
  if (result || result.error().code() != ErrorCode::NotFound) return result;
  // The process that finishes removes the folder of the export, perhaps between two steps of this
  // one.
  CKFS_TRY(const bool over, is_finished(directory, files));
  return over ? finished_rank(directory, files.origin, {}, checkpoint.mtime()) : result;
}

Result<void> finish_export(const View& view, const std::filesystem::path& out,
                           const OutSystem& system) {
  CKFS_TRY_VOID(check_process(view));
  const Checkpoint checkpoint = view.checkpoint();
  CKFS_TRY_VOID(refuse_inside(out, view));
  CKFS_TRY(const ExportRecord files, fresh_record(view));
  CKFS_TRY_VOID(refuse_own_source(out, checkpoint, files));
  const auto not_begun = [&] {
    return fail(ErrorCode::InvalidArgument, "{}: no rank has begun to export here", out.native());
  };
  std::error_code error;
  if (!std::filesystem::is_directory(out, error)) return not_begun();  // it is not made
  CKFS_TRY(const OutDirectory directory, OutDirectory::open(out, system, Others::OfOneFleet));
  CKFS_TRY_VOID(is_trusted(directory, kFleetName, false, kOwnOut));
  CKFS_TRY(const std::optional<Fleet> fleet, load_fleet(directory));
  CKFS_TRY(const bool finished, is_finished(directory, files));
  if (finished) {
    CKFS_TRY_VOID(remove_own_files(directory, files.origin, checkpoint.mtime()));
    return refuse_lost(directory, files, checkpoint.mtime());
  }
  if (!fleet) return not_begun();
  const std::string other =
      difference(*fleet, {.origin = files.origin, .world = fleet->world, .split = fleet->split});
  if (!other.empty()) return another_fleet(directory, other);
  CKFS_TRY(const std::string missing, missing_parts(directory, *fleet, 0));
  if (!missing.empty()) {
    return fail(ErrorCode::InvalidArgument,
                "{}: not finished: {} (run them again: --rank R --world {})", out.native(), missing,
                fleet->world);
  }
  return finish(directory, view, files, checkpoint.mtime());
}

}  // namespace ckfs
