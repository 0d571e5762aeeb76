// A rank may be run again while another one finishes. The order of looking decides such races: OUT
// gets its mark (or record.json) before any rank's record goes, and a rank looks for the mark after
// it has looked for its own record. So a rank whose record is gone finds that all is finished.
#include "export/rank_export.h"

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <unistd.h>

#include "api/inside.h"
#include "base/size_text.h"
#include "export/fleet.h"
#include "export/out_rules.h"
#include "export/rank_writer.h"
#include "export/weight_shares.h"

namespace ckfs {

namespace {

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
  CKFS_TRY(const auto text, out.read_text(std::string(kFleetName), kMaxRankText));
  if (!text) return std::nullopt;
  const Result<Fleet> fleet = parse_fleet(*text);
  if (!fleet) return Failure(fleet.error().within(out.name()));
  return *fleet;
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
  const auto read = directory.read_text(std::string(kFinisherName), kMaxRankText);
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
