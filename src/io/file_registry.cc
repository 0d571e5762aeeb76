// Whether a file still is the one that was opened is found out by comparing: before it is read,
// which saves the read, and again once the bytes have come, which is what makes a mixture of old
// and new content impossible to miss (as far as size and mtime show it). Leases or inotify would
// report it without being asked, but neither works on network file systems, and both come too late
// for bytes already handed on.
#include "io/file_registry.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <thread>

#include "base/checked.h"
#include "io/file_order.h"
#include "io/page_cache.h"

namespace ckfs {
namespace {

using Clock = std::chrono::steady_clock;

/// At most half of the descriptors that the process may have: mounts, logs, sockets and files on
/// their way in and out need some too.
std::size_t open_file_limit(std::size_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  return std::clamp<std::size_t>(wanted, 1, std::max<std::size_t>(limit.rlim_cur / 2, 1));
}

bool means_gone(int error) {
  return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ESTALE;
}

/// Each of the threads that open files has one or two of them open beside those that are kept.
Parallel parallel_within(const IoOptions& options) {
  Parallel parallel = options.parallel;
  const std::size_t most = std::max<std::size_t>(open_file_limit(options.max_open_files) / 2, 1);
  parallel.most = std::min(parallel.most, most);
  parallel.few = std::min(parallel.few, parallel.most);
  return parallel;
}

Failure not_a_file(std::string_view name) {
  return fail(ErrorCode::InvalidArgument, "{}: not a regular file", name);
}

}  // namespace

bool out_of_descriptors(int error) {
  return error == EMFILE || error == ENFILE;
}

FileRegistry::FileRegistry(const IoOptions& options, std::unique_ptr<OpenStore> store)
    : parallel_(parallel_within(options)),
      path_check_interval_(options.path_check_interval),
      strict_(options.strict),
      store_(std::move(store)),
      open_files_(open_file_limit(options.max_open_files), *store_) {}

RegisteredFile& FileRegistry::file(FileId id) {
  const ReaderLock lock(mutex_);
  CKFS_CHECK(id < files_.size());
  return files_[id];
}

std::size_t FileRegistry::count() const {
  const ReaderLock lock(mutex_);
  return files_.size();
}

// Opens a file that was listed as one without another look: putting a device in its place in
// between needs root. Looks first at a file that is known only by its name.
Result<FileRegistry::Registered> FileRegistry::register_one(FileId id, NewFile& file) {
  if (!file.plain) {
    auto resolved = store_->resolve(file.path);
    if (!resolved) return system_failure(resolved.error(), file.name, "open");
    file.path = *std::move(resolved);
    const auto status = store_->look(file.path);
    if (!status) return system_failure(status.error(), file.name, "stat");
    if (status->kind != FileKind::File) return not_a_file(file.name);
  }
  // Opened now, so that a file that may not be read is refused now and not by its first reader.
  const auto pinned = pin_unchecked(id, file.path);
  if (!pinned) return system_failure(pinned.error(), file.name, "open");
  const int fd = (*pinned)->fd.get();
  const auto status = store_->look(fd);
  if (!status) return system_failure(status.error(), file.name, "stat");
  if (status->kind != FileKind::File) return not_a_file(file.name);
  FileSystem& file_system = file_systems_.of(status->fingerprint.device, fd);
  if (!file_system.traits.remote) page_cache::expect_exact_reads(fd);
  return Registered{status->fingerprint, &file_system};
}

Result<FileId> FileRegistry::add(std::vector<NewFile> added) {
  const auto first = static_cast<FileId>(count());
  if (!checked_cast<FileId>(first + added.size())) {
    return fail(ErrorCode::Unsupported, "{}: more than {} files", added.back().name, ~FileId{0});
  }
  std::vector<Registered> registered(added.size());
  const Result<void> done = run_parallel(
      added.size(),
      [&](std::size_t i) -> Result<void> {
        CKFS_TRY(registered[i], register_one(first + static_cast<FileId>(i), added[i]));
        return {};
      },
      parallel_);
  if (!done) {
    for (std::size_t i = 0; i < added.size(); ++i) {
      open_files_.drop(first + static_cast<FileId>(i));
    }
    return Failure(done.error());
  }
  const WriterLock lock(mutex_);
  for (std::size_t i = 0; i < added.size(); ++i) {
    RegisteredFile& file = files_.emplace_back();
    file.name = std::move(added[i].name);
    file.path = std::move(added[i].path);
    file.fingerprint = registered[i].fingerprint;
    file.file_system = registered[i].file_system;
    file.inodes = file.file_system->traits.stable_inodes ? CompareInodes::On : CompareInodes::Off;
  }
  return first;
}

Failure FileRegistry::stale(RegisteredFile& file, const std::string& what) {
  const MutexLock lock(file.stale_mutex);
  if (!file.stale.load(std::memory_order_relaxed)) {
    file.stale_reason = fmt::format(
        "{}: changed since it was opened: {} (mount again to see the new file)", file.name, what);
    spdlog::error("{}", file.stale_reason);
    file.stale.store(true, std::memory_order_release);
  }
  return Failure(Error(ErrorCode::Stale, file.stale_reason));
}

Result<void> FileRegistry::compare(RegisteredFile& file, const FileStatus& now) {
  if (auto what = difference(file.fingerprint, now.fingerprint, file.inodes)) {
    return stale(file, *what);
  }
  // A deleted file has another ctime, of course: what became of its path is check_path()'s.
  if (now.names == 0 || (!strict_ && file.ctime_reported.load(std::memory_order_relaxed)))
    return {};
  const auto what = ctime_change(file.fingerprint, now.fingerprint, file.inodes);
  if (!what) return {};
  if (strict_) return stale(file, *what);
  if (!file.ctime_reported.exchange(true)) {
    spdlog::warn("{}: {}: its size and mtime are unchanged, so it is still served", file.name,
                 *what);
  }
  return {};
}

Result<void> FileRegistry::check(RegisteredFile& file, int fd) {
  if (file.stale.load(std::memory_order_acquire)) return stale(file, {});
  const auto now = store_->look(fd);
  if (now) return compare(file, *now);
  if (means_gone(now.error())) return stale(file, std::strerror(now.error()));
  return system_failure(now.error(), file.name, "stat");
}

Result<void> FileRegistry::check_path(RegisteredFile& file) {
  const std::int64_t now = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
  std::int64_t checked = file.path_checked.load(std::memory_order_relaxed);
  if (checked != 0 && now - checked < path_check_interval_.count()) return {};
  // One thread looks; the others trust what was true a moment ago.
  if (!file.path_checked.compare_exchange_strong(checked, now)) return {};
  const auto status = store_->look(file.path);
  if (status) return compare(file, *status);
  // Other errors (EACCES, EIO, a server that does not answer) say nothing about the file.
  if (means_gone(status.error())) return stale(file, "removed");
  return {};
}

Tried<Pin> FileRegistry::pin_unchecked(FileId id, const std::filesystem::path& path,
                                       unsigned number, OpenFiles::Prepare prepare) {
  auto pinned = open_files_.pin(id, path, number, prepare);
  // Other threads hold descriptors only while they read: it is worth asking again.
  for (int attempt = 0; !pinned && out_of_descriptors(pinned.error()) && attempt < 100; ++attempt) {
    std::this_thread::yield();
    pinned = open_files_.pin(id, path, number, prepare);
  }
  return pinned;
}

Result<Pin> FileRegistry::pin(FileId id, RegisteredFile& file, unsigned number) {
  if (file.stale.load(std::memory_order_acquire)) {
    open_files_.drop(id);  // of a deleted file it is what keeps the disk's blocks
    return stale(file, {});
  }
  // Elsewhere the kernel's read-ahead is what streams, but after a jump it would be thrown away.
  const bool exact = !file.file_system->traits.remote || number == FileOrder::kJumps;
  const auto prepare = exact ? &page_cache::expect_exact_reads : nullptr;
  auto pinned = pin_unchecked(id, file.path, number, prepare);
  if (!pinned) {
    if (means_gone(pinned.error())) return stale(file, "removed");
    // What may not be opened may be another file by now.
    if (const auto now = store_->look(file.path)) CKFS_TRY_VOID(compare(file, *now));
    return system_failure(pinned.error(), file.name, "open");
  }
  const Descriptor& opened = **pinned;
  if (!opened.compared.load(std::memory_order_relaxed)) {
    CKFS_TRY_VOID(check(file, opened.fd.get()));
    opened.compared.store(true, std::memory_order_relaxed);
  }
  CKFS_TRY_VOID(check_path(file));
  return *std::move(pinned);
}

Failure FileRegistry::failed(RegisteredFile& file, int fd, const AccessFailure& failure) {
  // A truncated file reads as a short one first: say what really happened.
  if (auto checked = check(file, fd); !checked) return Failure(std::move(checked).error());
  if (means_gone(failure.error)) return stale(file, std::strerror(failure.error));
  if (failure.error == 0) {
    return Failure(Error(ErrorCode::Io,
                         fmt::format("{}: offset {}: the file ends here (size {})", file.name,
                                     failure.offset, file.fingerprint.size),
                         EIO));
  }
  return Failure(Error(
      ErrorCode::Io,
      fmt::format("{}: offset {}: {}", file.name, failure.offset, std::strerror(failure.error)),
      failure.error));
}

}  // namespace ckfs
