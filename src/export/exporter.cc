// A view becomes a directory in four steps: look (is OUT ours, does it fit), clear (what another
// source or view left), write (files in parallel, the largest first), close (directories, times).
//
// Jobs are files: several writers of one file would take turns at its inode's lock, and a view has
// usually enough files. The largest come first so that the last job does not run alone; with that
// the index and the configuration come last, so an unfinished OUT does not load by mistake. A run
// that is killed leaves its record, at most 64 MiB behind what was written; a run that fails or is
// stopped also gives back the disk that it had reserved.
#include "export/exporter.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <new>
#include <span>
#include <spdlog/spdlog.h>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/start_thread.h"
#include "base/units.h"
#include "export/decode_spill.h"
#include "export/export_record.h"
#include "export/fleet.h"
#include "export/out_directory.h"
#include "export/out_rules.h"
#include "export/pieces.h"
#include "export/record_keeper.h"

namespace ckfs {

namespace {

// A view of small files would otherwise spend its time on writing the record.
constexpr std::chrono::milliseconds kRecordInterval{500};

/// A file of the view.
struct Wanted {
  std::string path;
  std::uint64_t size = 0;
  std::string part = {};  // its name until it is complete
  unsigned mode = 0666;   // who may not read the source gets no copy
};

/// The files of the view that are written, the largest first.
std::vector<Wanted> files_to_write(const View& view) {
  std::vector<Wanted> files;
  for (const FileInfo& file : view.files()) {
    files.push_back(
        {.path = std::string(file.path), .size = file.size, .mode = mode_of_copy(file.readers)});
  }
  std::ranges::sort(files, [](const Wanted& a, const Wanted& b) {
    return a.size != b.size ? a.size > b.size : a.path < b.path;
  });
  return files;
}

/// Which files of `old` still stand finished, and how far the others came.
ExportRecord resume_from(const OutDirectory& out, const ExportRecord& fresh,
                         const ExportRecord& old, std::int64_t mtime) {
  ExportRecord record = fresh;
  std::size_t number = 0;
  for (auto& [path, file] : record.files) {
    const std::string part = part_name(number++);  // of the same origin, so of the same files
    const auto before = old.files.find(path);
    if (before == old.files.end() || before->second.size != file.size) continue;
    if (before->second.finished) {
      const auto entry = out.entry(path);
      file.finished = entry && entry->regular && entry->size == file.size && entry->mtime == mtime;
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

/// One run.
class Run {
 public:
  Run(const OutDirectory& out, const View& view, const ExportOptions& options, std::int64_t mtime,
      ExportRecord record)
      : out_(out),
        view_(view),
        options_(options),
        mtime_(mtime),
        total_(sum(record, [](const auto& file) { return file.size; })),
        record_(std::move(record),
                [&out](const ExportRecord& now) {
                  return out.replace_text(std::string(kRecordName), to_json(now));
                }),
        done_(sum(record_.copy(),
                  [](const auto& file) { return file.finished ? file.size : file.synced; })) {}

  /// `stale`: files that go before the first byte is written.
  Result<void> check_space(std::span<const std::string> stale) const;
  /// Disk that is left when all is written. Requires: no job runs.
  std::uint64_t spare_bytes() const {
    const std::uint64_t free = out_.free_bytes().value_or(0);
    return free - std::min(free, needed_bytes());
  }
  Result<ExportResult> write(const std::vector<Wanted>& files);

 private:
  Result<void> write_file(const Wanted& info);
  template <typename Bytes>
  static std::uint64_t sum(const ExportRecord& record, Bytes&& bytes) {
    std::uint64_t total = 0;
    for (const auto& [path, file] : record.files) total += bytes(file);
    return total;
  }
  void advance(std::uint64_t bytes);
  bool ends() const { return stop_.stop_requested() || options_.stop.stop_requested(); }
  Failure no_space(std::uint64_t needed) const;
  std::uint64_t needed_bytes() const;

  const OutDirectory& out_;
  const View& view_;
  const ExportOptions& options_;
  const std::int64_t mtime_;
  const std::uint64_t total_;
  std::stop_source stop_;  // an error in one job ends the others
  RecordKeeper<ExportRecord> record_;

  Mutex mutex_;
  std::uint64_t done_ CKFS_GUARDED_BY(mutex_);
  ExportResult result_ CKFS_GUARDED_BY(mutex_);
  std::optional<Error> error_ CKFS_GUARDED_BY(mutex_);
  std::size_t next_ CKFS_GUARDED_BY(mutex_) = 0;
};

Failure Run::no_space(std::uint64_t needed) const {
  return Failure(Error(ErrorCode::Io,
                       fmt::format("{}: no space left: {} bytes needed, {} free", out_.name(),
                                   needed, out_.free_bytes().value_or(0)),
                       ENOSPC));
}

/// Disk that the unfinished files still take. Requires: no job runs.
std::uint64_t Run::needed_bytes() const {
  std::uint64_t needed = 0;
  const ExportRecord record = record_.copy();
  std::size_t number = 0;
  for (const auto& [path, file] : record.files) {
    const std::string name = part_name(number++);
    if (file.finished) continue;
    const auto part = out_.entry(name);
    const std::uint64_t there = part && file.synced > 0 ? part->allocated : 0;
    needed += file.size - std::min(file.size, there);
  }
  return needed;
}

Result<void> Run::check_space(std::span<const std::string> stale) const {
  const std::uint64_t needed = needed_bytes();
  auto free = out_.free_bytes();
  for (const std::string& path : stale) {
    const auto entry = out_.entry(path);
    if (free && entry && entry->regular) *free += entry->size;
  }
  if (free && needed > *free) return no_space(needed);
  return {};
}

void Run::advance(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  done_ += bytes;
  result_.bytes += bytes;
  if (options_.progress) options_.progress(done_, total_);
}

Result<void> Run::write_file(const Wanted& info) {
  const std::string& temporary = info.part;
  std::uint64_t synced =
      record_.look([&](const ExportRecord& record) { return record.files.at(info.path).synced; });
  CKFS_TRY(ViewFile source, view_.open(info.path, {.whole = true, .once = true}));
  CKFS_TRY_VOID(out_.make_parents(info.path));
  CKFS_TRY(OutFile target, synced > 0 ? out_.reopen(temporary) : out_.create(temporary, info.mode));
  // What was written behind the last fsync may be anything after a power failure.
  if (synced > 0) CKFS_TRY_VOID(target.truncate(synced));

  const auto written = [&]() -> Result<void> {
    CKFS_TRY_VOID(target.reserve({0, info.size}));
    CKFS_TRY_VOID(write_range(source, {synced, info.size}, target,
                              {.ends = [&] { return ends(); },
                               .advance = [&](std::uint64_t bytes) { advance(bytes); },
                               .synced = [&](std::uint64_t at) -> Result<void> {
                                 synced = at;
                                 record_.change([&](ExportRecord& record) {
                                   record.files[info.path] = {.size = info.size, .synced = at};
                                 });
                                 return record_.store();
                               }}));
    CKFS_TRY_VOID(target.set_mtime(mtime_));
    return target.sync();
  }();
  if (!written) {
    if (synced > 0) {
      (void)target.truncate(synced);
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

Result<ExportResult> Run::write(const std::vector<Wanted>& files) {
  std::vector<const Wanted*> open;
  for (const Wanted& file : files) {
    const bool finished = record_.look(
        [&](const ExportRecord& record) { return record.files.at(file.path).finished; });
    if (!finished) open.push_back(&file);
  }
  CKFS_TRY_VOID(record_.store());
  {
    const MutexLock lock(mutex_);
    result_.files_kept = files.size() - open.size();
    if (options_.progress) options_.progress(done_, total_);
  }

  const auto job = [&] {
    while (!ends()) {
      const Wanted* file = nullptr;
      {
        const MutexLock lock(mutex_);
        if (next_ == open.size()) return;
        file = open[next_++];
      }
      const Result<void> written = [&]() -> Result<void> {
        try {
          return write_file(*file);
        } catch (const std::bad_alloc&) {
          return fail(ErrorCode::OutOfMemory, "memory: the system gives no more");
        }
      }();
      if (written) continue;
      const MutexLock lock(mutex_);
      if (!error_) error_ = written.error();
      stop_.request_stop();
    }
  };
  const std::size_t cpus = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t jobs = std::min(options_.jobs == 0 ? cpus : options_.jobs, open.size());
  std::vector<std::thread> threads;
  threads.reserve(jobs);
  while (threads.size() + 1 < jobs) {
    auto thread = start_thread(job);
    if (!thread) break;
    threads.push_back(*std::move(thread));
  }
  job();
  for (std::thread& thread : threads) thread.join();

  const Result<void> stored = record_.store();
  const MutexLock lock(mutex_);
  if (error_ && (error_->system_error() == ENOSPC || error_->system_error() == EDQUOT)) {
    return no_space(needed_bytes());  // one message, whichever call met it first
  }
  if (error_ && error_->system_error() != EINTR) return Failure(*error_);
  if (options_.stop.stop_requested() && result_.files + result_.files_kept < files.size()) {
    return Failure(Error(ErrorCode::Io,
                         fmt::format("{}: interrupted after {} of {} bytes (the same command goes "
                                     "on from there)",
                                     out_.name(), done_, total_),
                         EINTR));
  }
  CKFS_TRY_VOID(stored);
  return result_;
}

}  // namespace

Result<ExportResult> export_view(const Checkpoint& checkpoint, const View& view,
                                 const std::filesystem::path& source,
                                 const std::filesystem::path& out, const ExportOptions& options) {
  CKFS_TRY_VOID(refuse_inside(out, source));
  std::vector<Wanted> files = files_to_write(view);
  CKFS_TRY(ExportRecord record, fresh_record(checkpoint, view));
  std::map<std::string_view, std::size_t> numbers;
  for (const auto& [path, file] : record.files) numbers.emplace(path, numbers.size());
  for (Wanted& file : files) file.part = part_name(numbers.at(file.path));

  CKFS_TRY(const OutDirectory directory, OutDirectory::open(out));
  CKFS_TRY(const bool trusted, is_trusted(directory, kRecordName, options.force,
                                          "--force goes on, and believes no record"));
  CKFS_TRY(const std::optional<ExportRecord> old,
           trusted ? load_record(directory, options.force) : std::nullopt);
  if (!options.force) CKFS_TRY_VOID(refuse_foreign(directory, old));
  if (directory.entry(std::string(kFleetName))) {
    return fail(ErrorCode::InvalidArgument,
                "{}: several processes export here (run their ranks, or --finish; or remove {}/{})",
                directory.name(), directory.name(), kExportFolder);
  }

  std::vector<std::string> stale;
  if (old && old->origin == record.origin) {
    record = resume_from(directory, record, *old, checkpoint.mtime());
  } else if (old) {
    spdlog::info("{}: starts over: it holds view {} of another source or version", out.native(),
                 old->origin.view);
    // Finished files go too: half of the old and half of the new would look like a checkpoint.
    for (const auto& [path, file] : old->files) stale.push_back(path);
  }
  std::size_t number = 0;
  for (const auto& [path, file] : old ? old->files : decltype(record.files)()) {
    const auto now = record.files.find(path);
    if (old->origin != record.origin || now == record.files.end() || now->second.synced == 0) {
      stale.push_back(part_name(number));
    }
    ++number;
  }
  Run run(directory, view, options, checkpoint.mtime(), record);
  CKFS_TRY_VOID(
      run.check_space(stale));  // before the old copy goes: there may be no room for a new
  for (const std::string& path : stale) CKFS_TRY_VOID(directory.remove(path));
  CKFS_TRY_VOID(directory.make_parents(std::string(kRecordName)));
  keep_decoded_chunks(view, directory, run.spare_bytes() / 8 * 7);
  CKFS_TRY(const ExportResult result, run.write(files));

  CKFS_TRY_VOID(close_directories(directory, record, checkpoint.mtime()));
  return result;
}

}  // namespace ckfs
