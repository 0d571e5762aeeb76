// The order of looking decides races between a rank that is run again and the one that finishes:
// record.json is written before any rank's record goes, and looked at after one's own record. So a
// rank that finds no record of its own, though it had one, finds that the export is finished.
#include "export/rank_export.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <random>
#include <spdlog/spdlog.h>
#include <thread>
#include <unistd.h>

#include "api/report.h"
#include "base/mutex.h"
#include "base/parallel.h"
#include "base/stop.h"
#include "export/fleet.h"
#include "export/out_rules.h"
#include "export/record_keeper.h"

namespace ckfs {

namespace {

constexpr std::size_t kMaxText = 64_MiB;
/// Processes believe each other's records.
constexpr std::string_view kOwnOut = "several processes need an OUT that only their user writes";
/// So many ranks are named one by one in a message.
constexpr std::size_t kMostNamed = 20;

std::string host_name() {
  std::array<char, 256> name{};
  (void)::gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// Whether OUT has all files of `fresh`, finished. Errors: InvalidArgument: it has something else.
Result<bool> is_finished(const OutDirectory& out, const ExportRecord& fresh) {
  CKFS_TRY(const std::optional<ExportRecord> found, load_record(out, false));
  if (!found) return false;
  const std::string other = difference({found->origin, 1, {}}, {fresh.origin, 1, {}});
  if (!other.empty()) {
    return fail(ErrorCode::InvalidArgument, "{}: holds an export of {} (give another OUT)",
                out.name(), other);
  }
  if (std::ranges::all_of(found->files, [](const auto& file) { return file.second.finished; })) {
    return true;
  }
  return fail(ErrorCode::InvalidArgument,
              "{}: one process has begun to export here, not several (without --rank it goes on)",
              out.name());
}

/// The first file of a finished export that OUT does not have any more as it was written.
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

/// What the ranks have agreed on; nullopt: nothing yet.
Result<std::optional<Fleet>> load_fleet(const OutDirectory& out) {
  CKFS_TRY(const auto text, out.read_text(std::string(kFleetName), kMaxText));
  if (!text) return std::nullopt;
  const Result<Fleet> fleet = parse_fleet(*text);
  if (!fleet) return Failure(fleet.error().within(out.name()));
  return *fleet;
}

Failure another_fleet(const OutDirectory& out, const std::string& difference) {
  return fail(ErrorCode::InvalidArgument,
              "{}: others write here {} (let them end, or remove {}/{})", out.name(), difference,
              out.name(), kExportFolder);
}

/// Joins those who write here, or is the first. nullopt: they have just finished.
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
    // The record stands before the fleet goes.
    CKFS_TRY(const bool finished, is_finished(out, files));
    if (finished) return std::nullopt;
    if (!options.common.force) CKFS_TRY_VOID(refuse_foreign(out, std::nullopt));
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

/// The record of a rank; nullopt: it has not begun.
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

/// What the ranks still lack, each with its number; empty where all are complete.
Result<std::string> lacking(const OutDirectory& out, const Fleet& fleet, unsigned first) {
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
    for (const auto& part : record->parts) left += part.step.range.end - part.synced;
    lines.push_back(fmt::format("rank {} lacks {} bytes (it ran on {})", rank, left, record->host));
  }
  return fmt::format("{}", fmt::join(lines, ", "));
}

/// The same as `done`, whose name another finisher may have taken away meanwhile; its error if so.
template <typename T>
Result<bool> unless_gone(const Result<T>& done) {
  if (done) return true;
  if (done.error().code() == ErrorCode::NotFound) return false;
  return Failure(done.error());
}

/// Gives each file its time and its name. What an earlier call has done stays done, and so does
/// what somebody does at the same time: a part that is gone has become its file.
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
    // Never made here but where it is empty: it would become the file, instead of the whole one.
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

/// Takes away what the ranks have left, once record.json stands for it. The fleet goes last:
/// whoever comes meanwhile sees that all is finished.
Result<void> remove_records(const OutDirectory& out) {
  CKFS_TRY(const std::vector<std::string> names, out.names(std::string(kExportFolder)));
  for (const std::string& name : names) {
    const std::string path = fmt::format("{}/{}", kExportFolder, name);
    if (path != kRecordName && path != kFleetName) CKFS_TRY_VOID(out.remove(path));
  }
  CKFS_TRY_VOID(out.remove(std::string(kFleetName)));
  return out.sync_directory(std::string(kExportFolder));
}

/// Requires: all ranks are complete. Whoever else finishes at the same time may take away what this
/// writes, the new record before it has its name; the files are whole whoever gave them theirs.
Result<void> finish(const OutDirectory& out, const View& view, ExportRecord record,
                    std::int64_t mtime) {
  CKFS_TRY_VOID(name_files(out, view, record, mtime));
  // Before the record says so: a name that a power failure takes back is not looked for again.
  CKFS_TRY_VOID(close_directories(out, record, kTurns, mtime));
  for (auto& [path, file] : record.files) file.finished = true;
  const Result<void> recorded = out.replace_text(std::string(kRecordName), to_json(record));
  if (!recorded) {
    CKFS_TRY(const bool finished, is_finished(out, record));
    if (!finished) return recorded;
  }
  return remove_records(out);
}

/// The ranks that write to each file of one rank, itself not among them: few, for parts are cut
/// along one line.
using Sharers = std::map<std::size_t, std::vector<unsigned>>;

/// One run of one rank.
class RankRun {
 public:
  RankRun(const OutDirectory& out, const View& view, const ExportRecord& files,
          const RankOptions& options, RankRecord record, Sharers sharers)
      : out_(out),
        view_(view),
        options_(options),
        sharers_(std::move(sharers)),
        keeper_(std::move(record),
                [&out](const RankRecord& now) {
                  return out.replace_text(rank_record_name(now.rank), to_json(now));
                }),
        parts_(keeper_.copy().parts) {
    for (const auto& [path, file] : files.files) paths_.push_back(&path);
    for (const auto& part : parts_) {
      total_ += part.step.range.size();
      done_ += part.synced - part.step.range.begin;
    }
    kept_ = done_;
  }

  /// Writes what is left, and records that nothing is.
  Result<RankResult> write();

 private:
  Result<void> write_part(std::size_t number);
  /// The part that bytes of a file go into, made where it is not there yet. Errors: those of
  /// OutDirectory; InvalidArgument (it is gone, with what another rank has written).
  Result<OutFile> open_part(std::size_t file, unsigned mode) const;
  /// A rank that has written into the part of a file, by its record; nullopt: no other has.
  Result<std::optional<unsigned>> find_writer(std::size_t file) const;
  /// What a run that was killed had reserved and not written, which counts as taken.
  void release_unwritten() const;
  bool ends() const { return options_.common.stop.stop_requested(); }
  void advance(std::uint64_t bytes);

  const OutDirectory& out_;
  const View& view_;
  const RankOptions& options_;
  const Sharers sharers_;
  RecordKeeper<RankRecord> keeper_;
  const std::vector<RankRecord::Part> parts_;  // as they were found
  std::vector<const std::string*> paths_;      // of the view's files
  std::uint64_t total_ = 0, kept_ = 0;
  Mutex mutex_;
  std::uint64_t done_ CKFS_GUARDED_BY(mutex_) = 0;
};

void RankRun::advance(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  done_ += bytes;
  if (options_.common.progress) options_.common.progress(done_, total_);
}

Result<std::optional<unsigned>> RankRun::find_writer(std::size_t file) const {
  // Not a copy of the record, which has an entry for each file: this is asked for each, too.
  const Fleet fleet = keeper_.look([](const RankRecord& record) { return record.fleet; });
  for (const unsigned rank : sharers_.at(file)) {
    CKFS_TRY(const auto record, load_rank(out_, fleet, rank));
    if (!record) continue;
    const bool has_written =
        record->complete || std::ranges::any_of(record->parts, [&](const RankRecord::Part& part) {
          return part.step.file == file && part.synced > part.step.range.begin;
        });
    if (has_written) return rank;
  }
  return std::nullopt;
}

Result<OutFile> RankRun::open_part(std::size_t file, unsigned mode) const {
  const std::string name = part_name(file);
  Result<OutFile> there = out_.reopen(name);
  if (there || there.error().code() != ErrorCode::NotFound) return there;
  CKFS_TRY(const std::optional<unsigned> writer, find_writer(file));
  if (writer) {
    // A network file system may remember that there was no such name. A link made once asks its
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

Result<void> RankRun::write_part(std::size_t number) {
  const RankRecord::Part& part = parts_[number];
  std::uint64_t synced = part.synced;
  const ByteRange left{synced, part.step.range.end};
  if (left.empty()) return {};
  CKFS_TRY(ViewFile source, view_.open(*paths_[part.step.file], {.whole = true, .once = true}));
  CKFS_TRY(OutFile target, open_part(part.step.file, mode_of_copy(source.info().readers)));
  const auto record = [&](std::uint64_t at) -> Result<void> {
    // Others believe the record, and would make a part that is gone anew.
    if (!out_.is_at(part_name(part.step.file), target)) {
      return fail(ErrorCode::InvalidArgument, "{}: was removed while rank {} wrote it",
                  target.thing(), options_.rank);
    }
    synced = at;
    keeper_.change([&](RankRecord& now) { now.parts[number].synced = at; });
    return {};
  };
  const auto read = [&](ByteRange range) { return source.read(range.begin, range.size()); };
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

void RankRun::release_unwritten() const {
  for (const RankRecord::Part& part : parts_) {
    const std::string name = part_name(part.step.file);
    if (!out_.entry(name)) continue;
    // Made with its mode already: it is not changed where the file is there.
    auto target = out_.open_shared(name, 0600);
    if (target) target->release({part.synced, part.step.range.end});
  }
}

Result<RankResult> RankRun::write() {
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
  const Result<void> written = run_parallel(parts_.size(),
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
                "{}: rank {} interrupted after {} of {} (the same command goes on from there)",
                out_.name(), options_.rank, human_size(done_), human_size(total_));
  }
  keeper_.change([](RankRecord& now) {
    now.complete = true;
    now.parts.clear();
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

/// The record that a rank begins with, or goes on from.
Result<RankRecord> begin_rank(const OutDirectory& out, const Fleet& fleet,
                              std::span<const ExportStep> steps, unsigned rank,
                              std::optional<RankRecord> found) {
  RankRecord record{
      .fleet = fleet, .rank = rank, .host = host_name(), .complete = false, .parts = {}};
  for (const ExportStep& step : steps) {
    record.parts.push_back({.step = step, .synced = step.range.begin});
  }
  if (!found) return record;
  if (!std::ranges::equal(found->parts, record.parts, {}, &RankRecord::Part::step,
                          &RankRecord::Part::step)) {
    return fail(ErrorCode::InvalidArgument,
                "{}/{}: is of a ckfs that cuts views elsewhere (remove {}/{})", out.name(),
                rank_record_name(rank), out.name(), kExportFolder);
  }
  record.parts = std::move(found->parts);
  // Nothing of a part that is gone is on disk, whatever the record says.
  for (RankRecord::Part& part : record.parts) {
    const auto entry = out.entry(part_name(part.step.file));
    if (!entry || !entry->regular || entry->size < part.synced) {
      part.synced = part.step.range.begin;
    }
  }
  return record;
}

}  // namespace

Result<RankResult> export_rank(const Checkpoint& checkpoint, const View& view,
                               const std::filesystem::path& source,
                               const std::filesystem::path& out, const RankOptions& options) {
  CKFS_CHECK(options.rank < options.world);
  CKFS_TRY_VOID(refuse_inside(out, source));
  CKFS_TRY(const ExportRecord files, fresh_record(checkpoint, view));
  CKFS_TRY_VOID(refuse_own_source(out, checkpoint, files));
  CKFS_TRY(const OutDirectory directory,
           OutDirectory::open(out, options.system, Others::OfOneFleet));
  // Records of others are believed, so --force does not help where strangers may write.
  CKFS_TRY_VOID(is_trusted(directory, kFleetName, false, kOwnOut));
  CKFS_TRY(const bool before, is_finished(directory, files));
  if (before) {
    CKFS_TRY_VOID(remove_records(directory));
    CKFS_TRY_VOID(refuse_lost(directory, files, checkpoint.mtime()));
    return RankResult{.bytes = 0, .bytes_kept = 0, .finished = true, .lacks = {}};
  }

  CKFS_TRY_VOID(directory.make_parents(std::string(kFleetName)));
  CKFS_TRY(const UniqueFd lock, directory.lock(rank_lock_name(options.rank)));
  if (!lock) {
    return fail(ErrorCode::InvalidArgument, "{}: another process writes rank {} of {}",
                directory.name(), options.rank, options.world);
  }
  // Takes away what this rank has left since, or one who was killed while he did so.
  const auto finished = [&](RankResult result) -> Result<RankResult> {
    CKFS_TRY_VOID(remove_records(directory));
    result.finished = true;
    result.lacks.clear();
    return result;
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
    CKFS_TRY(result, RankRun(directory, view, files, options, std::move(begun),
                             sharers_of(steps, options.rank))
                         .write());
  }
  CKFS_TRY(result.lacks, lacking(directory, fleet, options.rank));
  if (!result.lacks.empty()) {
    // Perhaps because somebody has just finished and taken the records away.
    CKFS_TRY(const bool over, is_over());
    return over ? finished(std::move(result)) : result;
  }
  const std::string me = fmt::format("rank {} on {}", options.rank, host_name());
  const auto put = directory.put_text(std::string(kFinisherName), me);
  const auto read = directory.read_text(std::string(kFinisherName), kMaxText);
  // Whoever was chosen may have finished since nothing lacked, and taken these away with the rest.
  CKFS_TRY(const bool over, is_over());
  if (over) return finished(std::move(result));
  CKFS_TRY(const bool chosen, put);
  CKFS_TRY(const auto finisher, read);
  // A rank that is run again may find that it was chosen before.
  if (!chosen && finisher && !finisher->starts_with(fmt::format("rank {} ", options.rank))) {
    result.lacks = fmt::format("{} gives the files their names", *finisher);
    return result;
  }
  CKFS_TRY_VOID(finish(directory, view, files, checkpoint.mtime()));
  result.finished = true;
  return result;
}

Result<void> finish_export(const Checkpoint& checkpoint, const View& view,
                           const std::filesystem::path& source, const std::filesystem::path& out,
                           const OutSystem& system) {
  CKFS_TRY_VOID(refuse_inside(out, source));
  CKFS_TRY(const ExportRecord files, fresh_record(checkpoint, view));
  CKFS_TRY_VOID(refuse_own_source(out, checkpoint, files));
  const auto not_begun = [&] {
    return fail(ErrorCode::InvalidArgument, "{}: no rank has begun to export here", out.native());
  };
  std::error_code error;
  if (!std::filesystem::is_directory(out, error)) return not_begun();  // and it is not made
  CKFS_TRY(const OutDirectory directory, OutDirectory::open(out, system, Others::OfOneFleet));
  CKFS_TRY_VOID(is_trusted(directory, kFleetName, false, kOwnOut));
  CKFS_TRY(const std::optional<Fleet> fleet, load_fleet(directory));
  CKFS_TRY(const bool finished, is_finished(directory, files));
  if (finished) {
    CKFS_TRY_VOID(remove_records(directory));
    return refuse_lost(directory, files, checkpoint.mtime());
  }
  if (!fleet) return not_begun();
  const std::string other =
      difference(*fleet, {.origin = files.origin, .world = fleet->world, .split = fleet->split});
  if (!other.empty()) return another_fleet(directory, other);
  CKFS_TRY(const std::string lacks, lacking(directory, *fleet, 0));
  if (!lacks.empty()) {
    return fail(ErrorCode::InvalidArgument, "{}: {} (run them again: --rank R --world {})",
                out.native(), lacks, fleet->world);
  }
  return finish(directory, view, files, checkpoint.mtime());
}

}  // namespace ckfs
