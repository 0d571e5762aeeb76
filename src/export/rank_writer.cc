// A rank writes ranges of files, or whole weights in the order of the source. Of a weight's ends,
// pages may be shared with other ranks: those bytes go into the record, because two hosts that
// write one page of a network file system would lose one of the writes.
#include "export/rank_writer.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "api/inside.h"
#include "base/parallel.h"
#include "base/size_text.h"
#include "base/stop.h"
#include "export/ordered_writer.h"
#include "export/out_rules.h"

namespace ckfs {
namespace {

/// The most steps that one task writes.
constexpr std::size_t kMostSteps = 64;

}  // namespace

Failure another_fleet(const OutDirectory& out, const std::string& difference) {
  return fail(ErrorCode::InvalidArgument,
              "{}: other processes export here {} (wait until they end, or remove {}/{})",
              out.name(), difference, out.name(), kExportFolder);
}

Result<std::optional<RankRecord>> load_rank(const OutDirectory& out, const Fleet& fleet,
                                            unsigned rank) {
  const std::string name = rank_record_name(rank);
  CKFS_TRY(const auto text, out.read_text(name, kMaxRankText));
  if (!text) return std::nullopt;
  Result<RankRecord> record = parse_rank_record(*text);
  if (!record) return Failure(record.error().within(out.name() + "/" + name));
  const std::string other = difference(record->fleet, fleet);
  if (!other.empty()) return another_fleet(out, other);
  return *std::move(record);
}

std::uint64_t bytes_of(std::span<const SourceStep> steps) {
  std::uint64_t bytes = 0;
  for (const SourceStep& step : steps) {
    for (const ExportStep& piece : step.pieces) bytes += piece.range.size();
  }
  return bytes;
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

RankWriter::RankWriter(const OutDirectory& out, const View& view, const ExportRecord& files,
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

}  // namespace ckfs
