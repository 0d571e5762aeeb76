// A view becomes a directory in four steps: look (what does OUT hold, is there room), clear (the
// export that this one replaces), write (first in the source's order where that is best, then files
// in parallel, turn by turn), close (directories, times, marks).
//
// A job is a file: several writers of one file would take turns at its inode's lock, and a view
// usually has enough files. The largest of a turn come first, so that the last job does not run
// alone. A killed run leaves its record, which may be behind the work by 64 MiB or half a second
// for each job, and in the order of the source by 256 MiB or a larger step. A run that fails or is
// stopped also gives back the disk that it has reserved.
#include "export/exporter.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <spdlog/spdlog.h>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "api/inside.h"
#include "base/mutex.h"
#include "base/parallel.h"
#include "base/size_text.h"
#include "base/stop.h"
#include "base/units.h"
#include "chunks/chunk_source.h"
#include "export/decode_spill.h"
#include "export/export_record.h"
#include "export/fleet.h"
#include "export/ordered_writer.h"
#include "export/out_directory.h"
#include "export/out_rules.h"
#include "export/pieces.h"
#include "export/record_keeper.h"

namespace ckfs {

namespace {

/// A file of the view.
struct Wanted {
  std::string path;
  std::uint64_t size = 0;
  std::size_t number = 0;  // among the view's files, by path
  int turn = 0;            // turn_of(path)
  std::string part = {};   // its name until it is complete
  unsigned mode = 0666;    // mode_of_copy()
};

/// The files of the view that are written, turn by turn, the largest first.
std::vector<Wanted> files_to_write(const View& view) {
  std::vector<Wanted> files;
  for (const FileInfo& file : view.files()) {
    files.push_back({.path = std::string(file.path),
                     .size = file.size,
                     .turn = turn_of(file.path),
                     .mode = mode_of_copy(file.readers)});
  }
  std::ranges::sort(files, [](const Wanted& a, const Wanted& b) {
    return std::tie(a.turn, b.size, a.path) < std::tie(b.turn, a.size, b.path);
  });
  return files;
}

/// A range of a file that is written in the source's order, and its step. Ascending.
struct OrderedRange {
  ByteRange range;
  std::size_t step = 0;
};
using OrderedRanges = std::vector<OrderedRange>;

std::vector<OrderedRanges> ranges_of(const SourceOrder& order, std::size_t files) {
  std::vector<OrderedRanges> ranges(files);
  for (std::size_t step = 0; step < order.steps.size(); ++step) {
    for (const ExportStep& piece : order.steps[step].pieces) {
      ranges[piece.file].push_back({piece.range, step});
    }
  }
  for (OrderedRanges& one : ranges) {
    std::ranges::sort(one, {}, [](const OrderedRange& ordered) { return ordered.range.begin; });
  }
  return ranges;
}

/// The ranges of a file that have still to be written, ascending.
std::vector<ByteRange> left_of(const ExportRecord::File& file, const OrderedRanges& ordered) {
  std::vector<ByteRange> left;
  if (file.finished) return left;
  const auto add = [&](std::uint64_t begin, std::uint64_t end) {
    if (begin < end) left.push_back({begin, end});
  };
  std::uint64_t at = 0;
  for (const OrderedRange& one : ordered) {
    add(std::max(at, file.synced), one.range.begin);
    if (one.step >= file.steps) add(one.range.begin, one.range.end);
    at = one.range.end;
  }
  add(std::max(at, file.synced), file.size);
  return left;
}

/// `fresh` with what `old` has finished and is still there, and with how far other files came.
ExportRecord resume_from(const OutDirectory& out, const ExportRecord& fresh,
                         const ExportRecord& old, std::span<const OrderedRanges> ordered,
                         std::int64_t mtime) {
  ExportRecord record = fresh;
  std::size_t number = 0;
  for (auto& [path, file] : record.files) {
    const bool in_order = !ordered[number].empty();
    const std::string part = part_name(number++);  // of the same origin, so of the same files
    const auto before = old.files.find(path);
    if (before == old.files.end() || before->second.size != file.size) continue;
    if (before->second.finished) {
      const auto entry = out.entry(path);
      file.finished = entry && entry->regular && entry->size == file.size && entry->mtime == mtime;
    } else if (in_order) {
      const auto entry = out.entry(part);
      if (old.order != record.order || before->second.steps == 0 ||
          before->second.synced > file.size) {
        continue;  // it was begun in another order
      }
      if (entry && entry->regular && entry->size == file.size) file = before->second;
    } else if (before->second.synced > 0) {
      const auto entry = out.entry(part);
      if (entry && entry->regular && entry->size >= before->second.synced &&
          before->second.synced <= file.size) {
        file.synced = before->second.synced;
      }
    }
  }
  return record;
}

/// Writes one view.
class ViewExport {
 public:
  ViewExport(const OutDirectory& out, const View& view, const SerialOptions& options,
             const SourceOrder& order, std::span<const OrderedRanges> ordered, std::int64_t mtime,
             ExportRecord record)
      : out_(out),
        view_(view),
        options_(options),
        order_(order),
        ordered_(ordered),
        mtime_(mtime),
        total_(sum(record, [](std::size_t, const auto& file) { return file.size; })),
        record_(std::move(record),
                [&out](const ExportRecord& now) {
                  return out.replace_text(std::string(kRecordName), to_json(now));
                }),
        done_(sum(record_.copy(), [&](std::size_t number, const auto& file) {
          std::uint64_t done = file.size;
          for (const ByteRange& left : left_of(file, ordered[number])) done -= left.size();
          return done;
        })) {}

  /// Errors: Io (ENOSPC). `stale`: files that will be removed before the first byte is written.
  Result<void> check_space(std::span<const std::string> stale) const;
  /// Free disk when all will be written. Requires: no job runs.
  std::uint64_t spare_bytes() const {
    const std::uint64_t free = out_.free_bytes().value_or(0);
    return free - std::min(free, needed_bytes());
  }
  Result<ExportResult> write(const std::vector<Wanted>& files);

 private:
  Result<void> write_ordered(const std::vector<Wanted>& files, std::size_t jobs);
  void release_ordered(const std::vector<Wanted>& files);
  Result<void> write_file(const Wanted& info);
  template <typename Bytes>
  static std::uint64_t sum(const ExportRecord& record, Bytes&& bytes) {
    std::uint64_t total = 0;
    std::size_t number = 0;
    for (const auto& [path, file] : record.files) total += bytes(number++, file);
    return total;
  }
  void advance(std::uint64_t bytes);
  bool ends() const { return stop_.stop_requested(); }
  Failure no_space(std::uint64_t needed) const;
  std::uint64_t needed_bytes() const;

  const OutDirectory& out_;
  const View& view_;
  const SerialOptions& options_;
  const SourceOrder& order_;
  const std::span<const OrderedRanges> ordered_;  // of each file of the view
  const std::int64_t mtime_;
  const std::uint64_t total_;
  // An error in one job stops the others, as a stop from outside does.
  std::stop_source stop_;
  const std::stop_callback<std::function<void()>> stopped_from_outside_{
      options_.common.stop, [this] { stop_.request_stop(); }};
  RecordKeeper<ExportRecord> record_;

  Mutex mutex_;
  std::uint64_t done_ CKFS_GUARDED_BY(mutex_);
  ExportResult result_ CKFS_GUARDED_BY(mutex_);
  std::optional<Error> error_ CKFS_GUARDED_BY(mutex_);
};

Failure ViewExport::no_space(std::uint64_t needed) const {
  return Failure(Error(ErrorCode::Io,
                       fmt::format("{}: no space left: {} needed, {} free", out_.name(),
                                   human_size(needed), human_size(out_.free_bytes().value_or(0))),
                       ENOSPC));
}

/// Disk that the unfinished files still need. Requires: no job runs.
std::uint64_t ViewExport::needed_bytes() const {
  std::uint64_t needed = 0;
  const ExportRecord record = record_.copy();
  std::size_t number = 0;
  for (const auto& [path, file] : record.files) {
    const std::string name = part_name(number++);
    if (file.finished) continue;
    const auto part = out_.entry(name);
    const std::uint64_t there = part && (file.synced > 0 || file.steps > 0) ? part->allocated : 0;
    needed += file.size - std::min(file.size, there);
  }
  return needed;
}

Result<void> ViewExport::check_space(std::span<const std::string> stale) const {
  const std::uint64_t needed = needed_bytes();
  auto free = out_.free_bytes();
  for (const std::string& path : stale) {
    const auto entry = out_.entry(path);
    if (free && entry && entry->regular) *free += entry->allocated;
  }
  if (free && needed > *free) return no_space(needed);
  return {};
}

void ViewExport::advance(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  done_ += bytes;
  result_.bytes += bytes;
  if (options_.common.progress) options_.common.progress(done_, total_);
}

/// Writes the pieces in the source's order, into files of their full sizes.
Result<void> ViewExport::write_ordered(const std::vector<Wanted>& files, std::size_t jobs) {
  if (order_.empty()) return {};
  const ExportRecord begun = record_.copy();
  std::vector<const Wanted*> by_number(files.size());
  for (const Wanted& file : files) by_number[file.number] = &file;
  const auto is_wanted = [&](std::size_t file, std::size_t step) {
    const ExportRecord::File& state = begun.files.at(by_number[file]->path);
    return !state.finished && state.steps <= step;
  };
  const auto begins = [&](const Wanted& file) {
    return !ordered_[file.number].empty() && is_wanted(file.number, 0);
  };
  const auto make_parts = [&]() -> Result<void> {
    for (const Wanted& file : files) {
      if (!begins(file)) continue;
      if (ends()) return stopped(file.part);
      CKFS_TRY(OutFile target, out_.create(file.part, file.mode));
      CKFS_TRY_VOID(target.reserve({0, file.size}));
      CKFS_TRY_VOID(target.truncate(file.size));
    }
    return {};
  };
  Result<void> written = make_parts();
  if (written) {
    written = write_in_order(
        view_, order_,
        {.ends = [&] { return ends(); },
         .advance = [&](std::uint64_t bytes) { advance(bytes); },
         .wanted = [&](std::size_t step,
                       const ExportStep& piece) { return is_wanted(piece.file, step); },
         .open = [&](std::size_t file) { return out_.reopen(by_number[file]->part); },
         .synced = [&](std::size_t steps) -> Result<void> {
           record_.change([&](ExportRecord& record) {
             for (const Wanted& file : files) {
               ExportRecord::File& state = record.files.at(file.path);
               if (state.finished || ordered_[file.number].empty()) continue;
               state.steps = std::max<std::uint64_t>(state.steps, steps);
             }
           });
           return record_.store();
         },
         .sync_step = options_.order_sync,
         .jobs = jobs});
  }
  return written;
}

/// Gives back the disk that is reserved for pieces that are not written. Requires: no job runs.
void ViewExport::release_ordered(const std::vector<Wanted>& files) {
  const ExportRecord record = record_.copy();
  for (const Wanted& file : files) {
    const ExportRecord::File& state = record.files.at(file.path);
    if (state.finished || ordered_[file.number].empty()) continue;
    if (state.steps == 0) {
      (void)out_.remove(file.part);
      continue;
    }
    Result<OutFile> target = out_.reopen(file.part);
    for (const ByteRange& left : left_of(state, ordered_[file.number])) {
      if (target) target->release(left);
    }
  }
}

Result<void> ViewExport::write_file(const Wanted& info) {
  const std::string& temporary = info.part;
  const bool in_order = !ordered_[info.number].empty();
  ExportRecord::File state =
      record_.look([&](const ExportRecord& record) { return record.files.at(info.path); });
  CKFS_TRY(ViewFile source, view_.open(info.path, {.whole = true, .once = true}));
  CKFS_TRY_VOID(out_.make_parents(info.path));
  const bool begun = in_order || state.synced > 0;
  CKFS_TRY(OutFile target, begun ? out_.reopen(temporary) : out_.create(temporary, info.mode));
  // After a power failure, bytes behind the last fsync may be anything.
  if (begun && !in_order) CKFS_TRY_VOID(target.truncate(state.synced));

  const WriteHooks hooks{
      .ends = [&] { return ends(); },
      .advance = [&](std::uint64_t bytes) { advance(bytes); },
      .synced = [&](std::uint64_t at) -> Result<void> {
        state.synced = at;
        record_.change([&](ExportRecord& record) { record.files[info.path] = state; });
        return record_.store();
      }};
  const auto read = [&](ByteRange range) { return lend(source, range.begin, range.size()); };
  const Result<void> written = or_out_of_memory([&]() -> Result<void> {
    if (!in_order) CKFS_TRY_VOID(target.reserve({0, info.size}));
    const ExportRecord::File fresh{.size = info.size, .steps = state.steps};
    for (const ByteRange& gap : left_of(fresh, ordered_[info.number])) {
      const ByteRange left = gap.intersect({state.synced, info.size});
      if (left.empty()) continue;
      CKFS_TRY_VOID(in_order ? write_part(view_, {info.number, gap}, left.begin, target, hooks)
                             : write_range(read, left, target, left.begin, hooks));
    }
    CKFS_TRY_VOID(target.set_mtime(mtime_));
    return target.sync();
  });
  if (!written) {
    if (in_order) return written;  // release_ordered()
    if (state.synced > 0) {
      (void)target.truncate(state.synced);
    } else {
      (void)out_.remove(temporary);
    }
    return written;
  }
  CKFS_TRY_VOID(out_.rename(temporary, info.path));
  CKFS_TRY_VOID(out_.sync_directory(parent_of(info.path)));
  CKFS_TRY_VOID(out_.sync_directory(std::string(kExportFolder)));
  record_.change([&](ExportRecord& record) {
    record.files[info.path] = {.size = info.size, .synced = 0, .finished = true};
  });
  {
    const MutexLock lock(mutex_);
    ++result_.files;
  }
  return info.size >= kSyncStep ? record_.store() : record_.store_at_times(kRecordInterval);
}

Result<ExportResult> ViewExport::write(const std::vector<Wanted>& files) {
  std::vector<const Wanted*> open;
  for (const Wanted& file : files) {
    const bool finished = record_.look(
        [&](const ExportRecord& record) { return record.files.at(file.path).finished; });
    if (!finished) open.push_back(&file);
  }
  CKFS_TRY_VOID(record_.store());
  // From here on the record says what OUT holds. The mark of a replaced export would be wrong.
  CKFS_TRY_VOID(out_.remove_mark());
  {
    const MutexLock lock(mutex_);
    result_.files_kept = files.size() - open.size();
    result_.bytes_kept = done_;
    if (options_.common.progress) options_.common.progress(done_, total_);
  }

  const StopScope scope(stop_.get_token());
  const std::size_t cpus = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t all_jobs = options_.common.jobs == 0 ? cpus : options_.common.jobs;
  const auto note = [&](const Result<void>& written) {
    if (written) return;
    const MutexLock lock(mutex_);
    if (!error_) error_ = written.error();
    stop_.request_stop();
  };
  if (!open.empty()) note(write_ordered(files, jobs_in_order(view_, all_jobs)));

  const auto write_some = [&](std::span<const Wanted* const> some) {
    return run_parallel(some.size(),
                        [&](std::size_t k) -> Result<void> {
                          if (ends()) return {};
                          const auto written =
                              or_out_of_memory([&] { return write_file(*some[k]); });
                          note(written);
                          return written;
                        },
                        {.few = all_jobs, .most = all_jobs});
  };
  for (std::span<const Wanted* const> left = open; !left.empty() && !ends();) {
    const int turn = left.front()->turn;
    const auto next =
        std::ranges::find_if(left, [&](const Wanted* file) { return file->turn != turn; });
    const auto count = static_cast<std::size_t>(next - left.begin());
    if (turn > 0) note(close_directories(out_, record_.copy(), turn, mtime_));
    if (!ends()) note(write_some(left.first(count)));
    left = left.subspan(count);
  }
  if (ends()) release_ordered(files);

  const Result<void> stored = record_.store();
  const MutexLock lock(mutex_);
  if (error_ && error_->system_error() == ENOSPC) {
    return no_space(needed_bytes());  // the same message whichever call failed
  }
  const bool stops = options_.common.stop.stop_requested();
  if (error_ && error_->code() != ErrorCode::Stopped) return Failure(*error_);
  if (stops && result_.files + result_.files_kept < files.size()) {
    return fail(ErrorCode::Stopped,
                "{}: interrupted after {} of {} (the same command continues from there)",
                out_.name(), human_size(done_), human_size(total_));
  }
  CKFS_TRY_VOID(stored);
  return result_;
}

/// The order to write in. Without steps where OUT takes the bytes of a file only in order, or where
/// the view needs no chunk in several places.
Result<SourceOrder> choose_order(const View& view, const OutDirectory& out,
                                 const OrderLimits& limits) {
  SourceOrder order = source_order(view, limits);
  const bool quantizes = chunk_source_of(view) == nullptr;
  if (order.empty() && quantizes) return order;
  if (order.empty()) {
    spdlog::info("{}: written in the order of its files: no chunk is needed in several places",
                 view.name());
    return order;
  }
  const auto any_order = [&]() -> Result<bool> {
    CKFS_TRY_VOID(out.make_parents(std::string(kRecordName)));
    CKFS_TRY(const bool takes, takes_offsets(out, fmt::format("{}/probe", kExportFolder)));
    // It may have been made for the probe alone, in a finished export that stays as it is.
    (void)out.remove_directory(std::string(kExportFolder));
    return takes;
  }();
  // Room is checked later, when files that will be removed count as free.
  const int fault = any_order ? 0 : any_order.error().system_error();
  if (!any_order && fault != ENOSPC && fault != EDQUOT) return Failure(any_order.error());
  if (any_order && !*any_order) {
    spdlog::info(
        "{}: written in the order of its files, and {}: {} takes the bytes of a file only one "
        "after "
        "another",
        view.name(), quantizes ? "weights are read twice" : "chunks are decoded again and again",
        out.name());
    return SourceOrder();
  }
  if (quantizes) {
    spdlog::info("{}: written in the order of its weights: codes with their scales, in {} steps",
                 view.name(), order.steps.size());
    return order;
  }
  std::uint64_t decoded = 0, most = 0;
  for (const SourceStep& step : order.steps) {
    decoded += step.decoded;
    most = std::max(most, step.decoded);
  }
  spdlog::info("{}: written in the order of its source: {} of chunks in {} steps of at most {}",
               view.name(), human_size(decoded), order.steps.size(), human_size(most));
  return order;
}

/// The result where nothing is left to do.
ExportResult already_there(const ExportRecord& record, const ExportOptions& options) {
  ExportResult result{.files_kept = record.files.size()};
  for (const auto& [path, file] : record.files) result.bytes_kept += file.size;
  if (options.progress) options.progress(result.bytes_kept, result.bytes_kept);
  return result;
}

}  // namespace

Result<ExportResult> export_view(const View& view, const std::filesystem::path& out,
                                 const ExportOptions& options) {
  return export_serial(view, out, {.common = options});
}

Result<ExportResult> export_serial(const View& view, const std::filesystem::path& out,
                                   const SerialOptions& options) {
  CKFS_TRY_VOID(check_process(view));
  const Checkpoint checkpoint = view.checkpoint();
  CKFS_TRY_VOID(refuse_inside(out, view));
  std::vector<Wanted> files = files_to_write(view);
  CKFS_TRY(ExportRecord record, fresh_record(view));
  std::map<std::string_view, std::size_t> numbers;
  for (const auto& [path, file] : record.files) numbers.emplace(path, numbers.size());
  for (Wanted& file : files) {
    file.number = numbers.at(file.path);
    file.part = part_name(file.number);
  }

  CKFS_TRY(const OutDirectory directory, OutDirectory::open(out, options.system));
  CKFS_TRY(const bool trusted, is_trusted(directory, kRecordName, options.common.force,
                                          "--force exports anyway and ignores any record"));
  CKFS_TRY(std::optional<FoundExport> found,
           trusted ? find_export(directory, record, options.common.force) : std::nullopt);
  const bool replaces = found && found->record.origin != record.origin;
  if (replaces && !options.common.force) {
    CKFS_TRY_VOID(refuse_replacing(directory, *found, record.origin));
  }
  if (replaces && found->is_marked) {
    CKFS_TRY(found->record.files, marked_files(directory, found->record.origin));
  }
  const ExportRecord* const old = found ? &found->record : nullptr;
  if (!options.common.force) CKFS_TRY_VOID(refuse_foreign(directory, old));
  if (directory.entry(std::string(kFleetName))) {
    return fail(
        ErrorCode::InvalidArgument,
        "{}: several processes export here (run the missing ranks, or --finish; or remove {}/{})",
        directory.name(), directory.name(), kExportFolder);
  }

  CKFS_TRY_VOID(refuse_own_source(out, checkpoint, record));
  if (old) CKFS_TRY_VOID(refuse_own_source(out, checkpoint, *old));
  if (old && !replaces && found->is_marked) {
    const std::vector<OrderedRanges> none(files.size());
    const ExportRecord there = resume_from(directory, record, *old, none, checkpoint.mtime());
    const bool is_whole =
        std::ranges::all_of(there.files, [](const auto& file) { return file.second.finished; });
    if (is_whole) {
      // A run that was killed at its very end may have left it.
      if (directory.entry(std::string(kExportFolder))) {
        CKFS_TRY_VOID(remove_own_files(directory, record.origin, checkpoint.mtime()));
      }
      return already_there(there, options.common);
    }
  }
  CKFS_TRY(const SourceOrder order, choose_order(view, directory, options.order));
  record.order = order.id;
  const std::vector<OrderedRanges> ordered = ranges_of(order, files.size());
  std::vector<std::string> stale;
  if (old && !replaces) {
    record = resume_from(directory, record, *old, ordered, checkpoint.mtime());
  } else if (old) {
    spdlog::info("{}: replaces {}", out.native(), found->text());
    // Also finished files: half of the old and half of the new would look like a checkpoint.
    for (const auto& [path, file] : old->files) stale.push_back(path);
  }
  std::size_t number = 0;
  for (const auto& [path, file] : old ? old->files : decltype(record.files)()) {
    const auto now = record.files.find(path);
    if (replaces || now == record.files.end() ||
        (now->second.synced == 0 && now->second.steps == 0)) {
      stale.push_back(part_name(number));
    }
    ++number;
  }
  ViewExport run(directory, view, options, order, ordered, checkpoint.mtime(), record);
  // Before the old copy is removed: the disk may not have room for a new one.
  CKFS_TRY_VOID(run.check_space(stale));
  if (options.common.stop.stop_requested()) {
    return fail(ErrorCode::Stopped, "{}: interrupted before anything was written",
                directory.name());
  }
  // First the files that make the old copy count as whole.
  std::ranges::stable_sort(stale, std::greater(),
                           [](const std::string& path) { return turn_of(path); });
  for (const std::string& path : stale) CKFS_TRY_VOID(directory.remove(path));
  // The new view may have a file of such a name.
  if (replaces) directory.remove_empty_parents(stale);
  CKFS_TRY_VOID(directory.make_parents(std::string(kRecordName)));
  std::optional<DecodeSpill> spill;
  if (!order.empty()) spill.emplace(view, directory, run.spare_bytes() / 8 * 7);
  CKFS_TRY(ExportResult result, run.write(files));
  if (const ChunkSource* const chunks = chunk_source_of(view)) {
    const ChunkStatistics statistics = chunks->statistics();
    spdlog::info("{}: {} bytes of chunks were decoded, {} of them kept on disk for a time",
                 view.name(), statistics.decoded, statistics.spill.written);
  }

  CKFS_TRY_VOID(close_directories(directory, record, kTurns, checkpoint.mtime()));
  CKFS_TRY_VOID(close_export(directory, std::move(record), checkpoint.mtime()));
  if (replaces && found->is_begun()) result.replaced = found->text();
  return result;
}

nlohmann::ordered_json json_members(const ExportResult& result) {
  using Json = nlohmann::ordered_json;
  return {{"finished", true},
          {"bytes", result.bytes},
          {"bytes_kept", result.bytes_kept},
          {"files", result.files},
          {"files_kept", result.files_kept},
          {"replaced", result.replaced.empty() ? Json() : Json(result.replaced)}};
}

}  // namespace ckfs
