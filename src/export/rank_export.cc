// A rank may be run again while another one finishes. The order of looking decides such races: OUT
// gets its mark (or record.json) before any rank's record goes, and a rank looks for the mark after
// it has looked for its own record. So a rank whose record is gone finds that all is finished.
#include "export/rank_export.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <random>
#include <set>
#include <spdlog/spdlog.h>
#include <thread>
#include <unistd.h>

#include "api/inside.h"
#include "base/mutex.h"
#include "base/parallel.h"
#include "base/size_text.h"
#include "base/stop.h"
#include "export/fleet.h"
#include "export/ordered_writer.h"
#include "export/out_rules.h"
#include "export/record_keeper.h"
#include "export/weight_shares.h"

namespace ckfs {

namespace {

constexpr std::size_t kMaxText = 64_MiB;
/// Processes believe each other's records.
constexpr std::string_view kOwnOut = "several processes need an OUT that only their user writes";
/// The most ranks that a message names one by one.
constexpr std::size_t kMostNamed = 20;
/// The most steps that one task writes.
constexpr std::size_t kMostSteps = 64;

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
Result<std::optional<Fleet>> join(const OutDirectory& out, const View& view,
                                  const ExportRecord& files, const RankOptions& options) {
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
      const auto in_order = [&] {
        return weight_shares(view, options.world) ? Split::Weights : Split::Ranges;
      };
      fleet.split = any_order ? in_order() : Split::Files;
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

Failure divides_differently(const OutDirectory& out, std::string_view record) {
  return fail(ErrorCode::InvalidArgument,
              "{}/{}: written by a version of ckfs that divides work differently (remove {}/{} "
              "and begin again)",
              out.name(), record, out.name(), kExportFolder);
}

Failure wrong_size(const OutDirectory& out, const std::string& part, std::uint64_t has,
                   std::uint64_t wanted, const std::string& path) {
  return fail(ErrorCode::InvalidArgument, "{}/{}: has {} bytes, not the {} of {}", out.name(), part,
              has, wanted, path);
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
    std::uint64_t left = record->left;
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

/// Pages that several ranks have bytes of: by file, their offsets and bytes.
using SharedPages = std::map<std::size_t, std::vector<std::pair<std::uint64_t, std::string>>>;

/// What the ranks have kept for this. Errors: NotFound (a record is gone, because another process
/// has just finished); InvalidArgument (the records do not have each byte once).
Result<SharedPages> gather_pages(const OutDirectory& out, const View& view, const Fleet& fleet) {
  SharedPages pages;
  if (fleet.split != Split::Weights) return pages;
  const std::optional<WeightShares> shares = weight_shares(view, fleet.world);
  if (!shares) return divides_differently(out, kFleetName);
  RankRecord all;
  std::size_t count = 0;
  for (unsigned rank = 0; rank < fleet.world; ++rank) {
    CKFS_TRY(const auto record, load_rank(out, fleet, rank));
    if (!record) return fail(ErrorCode::NotFound, "{}: rank {} has no record", out.name(), rank);
    if (record->order != shares->ranks[rank].id) {
      return divides_differently(out, rank_record_name(rank));
    }
    count += record->kept.size();
    all.kept.insert(record->kept.begin(), record->kept.end());
  }
  auto part = all.kept.begin();
  bool each_once = count == all.kept.size();
  for (std::size_t file = 0; file < shares->shared.size() && each_once; ++file) {
    for (const ByteRange page : shares->shared[file]) {
      std::string bytes;
      while (part != all.kept.end() && bytes.size() < page.size() && !part->second.empty() &&
             part->first == std::pair(file, page.begin + bytes.size())) {
        bytes += part->second;
        ++part;
      }
      each_once = each_once && bytes.size() == page.size();
      pages[file].emplace_back(page.begin, std::move(bytes));
    }
  }
  if (each_once && part == all.kept.end()) return pages;
  return fail(ErrorCode::InvalidArgument,
              "{}: the records of the ranks do not have each byte once that they share (remove "
              "{}/{} and begin again)",
              out.name(), out.name(), kExportFolder);
}

/// Gives each file its time and its name, and writes its pages before. Keeps what an earlier call
/// has done, or what another process does at the same time: a part that is gone has become its
/// file.
Result<void> name_files(const OutDirectory& out, const View& view, const ExportRecord& record,
                        const SharedPages& pages, std::int64_t mtime) {
  struct Named {
    const std::string* path;
    std::uint64_t size;
    std::string part;
    int turn;
    std::size_t number;
  };
  std::map<std::string_view, unsigned> modes_of_empty;
  for (const FileInfo& file : view.files()) {
    if (file.size == 0) modes_of_empty.emplace(file.path, mode_of_copy(file.readers));
  }
  std::vector<Named> files;
  for (const auto& [path, file] : record.files) {
    files.push_back({&path, file.size, part_name(files.size()), turn_of(path), files.size()});
  }
  std::ranges::stable_sort(files, {}, &Named::turn);
  int turn = 0;
  for (const Named& file : files) {
    if (file.turn != turn) CKFS_TRY_VOID(close_directories(out, record, file.turn, mtime));
    turn = file.turn;
    const auto part = out.entry(file.part);
    const auto shared = pages.find(file.number);
    // The end of the file may be in such a page.
    if (part && part->size != file.size && (shared == pages.end() || part->size > file.size)) {
      return wrong_size(out, file.part, part->size, file.size, *file.path);
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
      if (shared != pages.end()) {
        for (const auto& [offset, bytes] : shared->second) {
          CKFS_TRY_VOID(target->write(offset, std::as_bytes(std::span(bytes))));
        }
        const auto whole = out.entry(file.part);
        if (whole && whole->size != file.size) {
          return wrong_size(out, file.part, whole->size, file.size, *file.path);
        }
      }
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
Result<void> finish(const OutDirectory& out, const View& view, const Fleet& fleet,
                    ExportRecord record, std::int64_t mtime) {
  const Result<SharedPages> pages = gather_pages(out, view, fleet);
  if (!pages && pages.error().code() == ErrorCode::NotFound) {
    CKFS_TRY(const bool finished, is_finished(out, record));
    if (finished) return remove_own_files(out, record.origin, mtime);
  }
  if (!pages) return Failure(pages.error());
  CKFS_TRY_VOID(name_files(out, view, record, *pages, mtime));
  // Before the export counts as finished: a name that a power failure takes back is not looked for
  // again.
  CKFS_TRY_VOID(close_directories(out, record, kTurns, mtime));
  const Result<void> closed = close_export(out, record, mtime);
  if (closed) return closed;
  CKFS_TRY(const bool finished, is_finished(out, record));
  return finished ? remove_own_files(out, record.origin, mtime) : closed;
}

/// Bytes that a rank keeps in its record (RankRecord::kept).
using KeptBytes = decltype(RankRecord::kept);

std::uint64_t bytes_of(std::span<const SourceStep> steps) {
  std::uint64_t bytes = 0;
  for (const SourceStep& step : steps) {
    for (const ExportStep& piece : step.pieces) bytes += piece.range.size();
  }
  return bytes;
}

/// Another rank that writes to a file of this one.
struct Sharer {
  unsigned rank = 0;
  std::size_t step = 0;  // the first that does, where the view is cut by weights
};

/// The sharers of each file of one rank. They are few, for parts are cut along one line.
using Sharers = std::map<std::size_t, std::vector<Sharer>>;

/// Writes the part of one rank.
class RankWriter {
 public:
  RankWriter(const OutDirectory& out, const View& view, const ExportRecord& files,
             const RankOptions& options, RankRecord record, Sharers sharers,
             const WeightShares* shares)
      : out_(out),
        view_(view),
        options_(options),
        sharers_(std::move(sharers)),
        shares_(shares),
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
    if (shares_ != nullptr) {
      const RankRecord begun = keeper_.copy();
      total_ = bytes_of(order().steps);
      done_ = total_ - begun.left;
      for (std::size_t i = 0; i < begun.steps; ++i) {
        for (const ExportStep& piece : order().steps[i].pieces) begun_.insert(piece.file);
      }
      for (std::size_t i = begun.steps; i < order().steps.size(); ++i) add_task(i);
      for (const FileInfo& file : view.files()) modes_.push_back(mode_of_copy(file.readers));
      ended_.resize(tasks_.size());
    }
    kept_ = done_;
  }

  /// Writes what is left, and records that the part is complete.
  Result<RankResult> write();

 private:
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

void RankWriter::add_task(std::size_t step) {
  const std::uint64_t bytes = bytes_of(std::span(&order().steps[step], 1));
  // Few steps are of files of their own, which stay open until they are synced.
  const bool is_full = tasks_.empty() || tasks_.back().bytes >= options_.sync_step ||
                       tasks_.back().end - tasks_.back().begin >= kMostSteps;
  if (is_full) tasks_.push_back({.begin = step, .end = step, .bytes = 0});
  tasks_.back().end = step + 1;
  tasks_.back().bytes += bytes;
}

void RankWriter::advance(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  done_ += bytes;
  if (options_.common.progress) options_.common.progress(done_, total_);
}

Result<std::optional<unsigned>> RankWriter::find_writer(std::size_t file) const {
  // No copy of the whole record: it has an entry for each file, and this is called for each file.
  const Fleet fleet = keeper_.look([](const RankRecord& record) { return record.fleet; });
  for (const auto& [rank, step] : sharers_.at(file)) {
    CKFS_TRY(const auto record, load_rank(out_, fleet, rank));
    if (!record) continue;
    const bool has_written =
        record->complete || record->steps > step ||
        std::ranges::any_of(record->ranges, [&](const RankRecord::Range& part) {
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

/// Other ranks believe the record, and would make a new file in the place of one that is gone.
Result<void> RankWriter::refuse_removed(std::size_t file, const OutFile& target) const {
  if (out_.is_at(part_name(file), target)) return {};
  return fail(ErrorCode::InvalidArgument, "{}: was removed while rank {} wrote it", target.thing(),
              options_.rank);
}

Result<void> RankWriter::write_part(std::size_t number) {
  const RankRecord::Range& part = ranges_[number];
  std::uint64_t synced = part.synced;
  const ByteRange left{synced, part.step.range.end};
  if (left.empty()) return {};
  CKFS_TRY(ViewFile source, view_.open(*paths_[part.step.file], {.whole = true, .once = true}));
  CKFS_TRY(OutFile target, open_part(part.step.file, mode_of_copy(source.info().readers)));
  const auto record = [&](std::uint64_t at) -> Result<void> {
    CKFS_TRY_VOID(refuse_removed(part.step.file, target));
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

/// Writes a piece. Bytes of pages that others have bytes of, too, are added to `kept` instead.
Result<void> RankWriter::write_piece(const ExportStep& piece, OutFile& target, KeptBytes& kept) {
  const std::uint64_t begin = piece.range.begin;
  const ByteRange own = own_bytes(*shares_, piece);
  CKFS_TRY(const ReadBytes read, read_part(view_, piece));
  const auto keep = [&](ByteRange range) -> Result<void> {
    if (range.empty()) return {};
    CKFS_TRY(const Bytes bytes, read({range.begin - begin, range.end - begin}));
    const auto span = bytes.span();
    kept[{piece.file, range.begin}] =
        std::string(reinterpret_cast<const char*>(span.data()), span.size());
    advance(span.size());
    return {};
  };
  CKFS_TRY_VOID(keep({begin, own.begin}));
  CKFS_TRY_VOID(write_range(read, {own.begin - begin, own.end - begin}, target, own.begin,
                            {.ends = [&] { return ends(); },
                             .advance = [&](std::uint64_t bytes) { advance(bytes); },
                             .synced = [](std::uint64_t) { return Result<void>(); },
                             .sync_step = ~std::uint64_t{0}}));
  return keep({own.end, piece.range.end});
}

Result<void> RankWriter::write_task(std::size_t number) {
  const Task& task = tasks_[number];
  KeptBytes kept;
  std::map<std::size_t, OutFile> targets;
  const Result<void> written = or_out_of_memory([&]() -> Result<void> {
    for (std::size_t step = task.begin; step < task.end; ++step) {
      for (const ExportStep& piece : order().steps[step].pieces) {
        if (ends()) return stopped(out_.name());
        auto target = targets.find(piece.file);
        if (target == targets.end()) {
          CKFS_TRY(OutFile opened, open_again(piece.file));
          target = targets.emplace(piece.file, std::move(opened)).first;
        }
        CKFS_TRY_VOID(write_piece(piece, target->second, kept));
      }
    }
    for (auto& [file, target] : targets) CKFS_TRY_VOID(target.sync());
    return {};
  });
  if (!written) {
    release(task);
    return written;
  }
  return record_task(number, std::move(targets), std::move(kept));
}

/// Opens a file that several tasks write to. One that is gone is made again by the first of them
/// only: with a new file, bytes of the others would be lost.
Result<OutFile> RankWriter::open_again(std::size_t file) {
  const MutexLock lock(open_mutex_);
  if (begun_.contains(file)) {
    Result<OutFile> there = out_.reopen(part_name(file));
    if (there || there.error().code() != ErrorCode::NotFound) return there;
    return fail(ErrorCode::InvalidArgument, "{}/{}: was removed while rank {} wrote it",
                out_.name(), part_name(file), options_.rank);
  }
  CKFS_TRY(OutFile opened, open_part(file, modes_[file]));
  begun_.insert(file);
  return opened;
}

/// The record counts steps from the first one, so a task that ends before an earlier one counts
/// when that has ended, too; its files stay open until then.
Result<void> RankWriter::record_task(std::size_t number, std::map<std::size_t, OutFile> targets,
                                     KeptBytes kept) {
  {
    const MutexLock lock(mutex_);
    keeper_.change([&](RankRecord& now) { now.kept.merge(kept); });
    ended_[number] = std::move(targets);
    for (; first_ < ended_.size() && ended_[first_]; ++first_) {
      for (const auto& [file, target] : *ended_[first_]) {
        CKFS_TRY_VOID(refuse_removed(file, target));
      }
      ended_[first_].reset();
      keeper_.change([&task = tasks_[first_]](RankRecord& now) {
        now.steps = task.end;
        now.left -= task.bytes;
      });
    }
  }
  return tasks_[number].bytes >= options_.sync_step ? keeper_.store()
                                                    : keeper_.store_at_times(kRecordInterval);
}

/// Gives back disk of a task's pieces that no record counts.
void RankWriter::release(const Task& task) const {
  for (std::size_t step = task.begin; step < task.end; ++step) {
    for (const ExportStep& piece : order().steps[step].pieces) {
      Result<OutFile> target = out_.reopen(part_name(piece.file));
      if (target) target->release(own_bytes(*shares_, piece));
    }
  }
}

void RankWriter::release_unwritten() const {
  for (const Task& task : tasks_) release(task);
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
  const std::size_t all_jobs = options_.common.jobs == 0 ? cpus : options_.common.jobs;
  const std::size_t jobs = shares_ != nullptr ? jobs_in_order(view_, all_jobs) : all_jobs;
  // What follows a failure is not run; what runs beside it comes to its end.
  const Result<void> written =
      run_parallel(shares_ != nullptr ? tasks_.size() : ranges_.size(),
                   [&](std::size_t number) {
                     return shares_ != nullptr ? write_task(number) : write_part(number);
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
    now.left = 0;
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
      if (shared != sharers.end()) shared->second.push_back({.rank = other});
    }
  }
  return sharers;
}

Sharers sharers_of(const WeightShares& shares, unsigned rank) {
  Sharers sharers;
  for (const SourceStep& step : shares.ranks[rank].steps) {
    for (const ExportStep& piece : step.pieces) sharers[piece.file];
  }
  for (unsigned other = 0; other < shares.ranks.size(); ++other) {
    if (other == rank) continue;
    const std::vector<SourceStep>& steps = shares.ranks[other].steps;
    for (std::size_t step = 0; step < steps.size(); ++step) {
      for (const ExportStep& piece : steps[step].pieces) {
        const auto shared = sharers.find(piece.file);
        if (shared == sharers.end()) continue;
        std::vector<Sharer>& list = shared->second;
        if (list.empty() || list.back().rank != other) list.push_back({other, step});
      }
    }
  }
  return sharers;
}

/// The record that a rank of a view that is cut by weights begins with, or continues.
Result<RankRecord> begin_share(const OutDirectory& out, const Fleet& fleet,
                               const WeightShares& shares, unsigned rank,
                               std::optional<RankRecord> found) {
  const SourceOrder& order = shares.ranks[rank];
  const RankRecord fresh{.fleet = fleet,
                         .rank = rank,
                         .host = host_name(),
                         .complete = false,
                         .ranges = {},
                         .order = order.id,
                         .steps = 0,
                         .left = bytes_of(order.steps),
                         .kept = {}};
  if (!found) return fresh;
  if (found->order != order.id || found->steps > order.steps.size()) {
    return divides_differently(out, rank_record_name(rank));
  }
  std::map<std::size_t, std::uint64_t> ends;  // of the bytes in each file
  const auto done = std::span(order.steps).first(found->steps);
  for (const SourceStep& step : done) {
    for (const ExportStep& piece : step.pieces) {
      const ByteRange own = own_bytes(shares, piece);
      std::uint64_t& end = ends[piece.file];
      if (!own.empty()) end = std::max(end, own.end);
    }
  }
  // A file that is gone has nothing on the disk, whatever the record says.
  for (const auto& [file, end] : ends) {
    const auto entry = out.entry(part_name(file));
    if (!entry || !entry->regular || entry->size < end) return fresh;
  }
  RankRecord record = fresh;
  record.steps = found->steps;
  record.left -= bytes_of(done);
  record.kept = std::move(found->kept);
  return record;
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
    return divides_differently(out, rank_record_name(rank));
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
  CKFS_TRY(const std::optional<Fleet> joined, join(directory, view, files, options));
  if (!joined) return finished({});
  const Fleet& fleet = *joined;
  CKFS_TRY(auto record, load_rank(directory, fleet, options.rank));
  RankResult result;
  const auto is_over = [&] { return is_finished(directory, files); };
  if (!record || !record->complete) {
    CKFS_TRY(const bool over, is_over());
    if (over) return finished({});
    const auto write = [&](RankRecord begun, Sharers sharers, const WeightShares* shares) {
      return RankWriter(directory, view, files, options, std::move(begun), std::move(sharers),
                        shares)
          .write();
    };
    if (fleet.split == Split::Weights) {
      const std::optional<WeightShares> shares = weight_shares(view, fleet.world);
      if (!shares) return divides_differently(directory, kFleetName);
      CKFS_TRY(RankRecord begun,
               begin_share(directory, fleet, *shares, options.rank, std::move(record)));
      CKFS_TRY(result, write(std::move(begun), sharers_of(*shares, options.rank), &*shares));
    } else {
      CKFS_TRY(const std::vector<FileCost> costs, file_costs(view));
      const auto steps = split_steps(costs, fleet.world, fleet.split);
      CKFS_TRY(RankRecord begun,
               begin_rank(directory, fleet, steps[options.rank], options.rank, std::move(record)));
      CKFS_TRY(result, write(std::move(begun), sharers_of(steps, options.rank), nullptr));
    }
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
  CKFS_TRY_VOID(finish(directory, view, fleet, files, checkpoint.mtime()));
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
  return finish(directory, view, *fleet, files, checkpoint.mtime());
}

}  // namespace ckfs
