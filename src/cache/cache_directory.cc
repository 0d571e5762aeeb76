// Processes share the directory without speaking to each other, and each may be killed at any
// point. So the amount of bytes is counted up before they are there, and down after they are gone:
// a kill in between leaves a count that is too high, which costs an early look at all files and
// nothing else. That look, which is needed to find the files to remove anyway, corrects the count.
// Room for a block is taken by fallocate while the lock is held, so the look sees also the bytes
// that another process is about to write.
//
// The lock is one of fcntl's that belong to an open file and not to a process: the kernel releases
// it when its holder is killed. A holder may also be stopped, or its disk hang; so nothing waits
// for the lock longer than kPatience, and a block that cannot be kept is not kept.
//
// What a count is worth after a crash of the machine is not known, since nothing here is synced:
// the count says in which start of the machine it was made, and is not believed in another.
#include "cache/cache_directory.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <map>
#include <queue>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <thread>
#include <unistd.h>

#include "base/hash.h"
#include "base/load_le.h"
#include "base/text.h"
#include "base/units.h"
#include "base/write_all.h"
#include "format/crc32c.h"

namespace ckfs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience{1000};
constexpr std::uint64_t kUsageMagic = 0x3145474153554B43;    // "CKUSAGE1"
constexpr std::uint64_t kRecordMagic = 0x31435253'53464B43;  // "CKFSSRC1"
constexpr std::size_t kLongestName = 20'000;                 // of a source
constexpr std::uint64_t kMostKeptFree = 10_GiB;
/// Files that one look at the directory removes at most: it remembers their names.
constexpr std::size_t kMostRemoved = 8192;

constexpr std::string_view kTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This directory is a cache of ckfs. It may be removed at any time: ckfs cache clear\n";

bool is_hex(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_source_directory(std::string_view name) {
  return name.size() == 16 && is_hex(name);
}

/// Texts that have no name yet are leftovers wherever the lock is held.
bool is_leftover(std::string_view name) {
  return name.starts_with("new-") && is_hex(name.substr(4));
}

bool is_cached_file(std::string_view name) {
  if (name.starts_with("text-")) return is_hex(name.substr(5));
  return name.size() > 17 && name[16] == '-' && is_hex(name.substr(0, 16)) &&
         is_hex(name.substr(17));
}

/// Calls `visit(name)` for each entry of a directory, but "." and "..".
template <typename Visit>
void for_each_name(int directory, const Visit& visit) {
  const int own = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (own < 0) return;
  DIR* const stream = ::fdopendir(own);
  if (stream == nullptr) {
    ::close(own);
    return;
  }
  while (const dirent* const entry = ::readdir(stream)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") visit(std::string(name));
  }
  ::closedir(stream);
}

std::uint64_t disk_bytes_of(const struct stat& status) {
  return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

UniqueFd open_source(int top, const std::string& name) {
  return UniqueFd(::openat(top, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

/// Another user could put bytes there, or read them.
Result<void> check_owner(const UniqueFd& directory, const std::string& name) {
  struct stat status{};
  if (::fstat(directory.get(), &status) != 0) return system_failure(errno, name, "stat");
  if (status.st_uid != ::geteuid()) {
    return fail(ErrorCode::InvalidArgument,
                "{}: the cache directory belongs to user {}, not to the caller (name another with "
                "--cache-dir)",
                name, status.st_uid);
  }
  if ((status.st_mode & 077) != 0) {
    return fail(
        ErrorCode::InvalidArgument,
        "{}: other users have rights in the cache directory (mode {:04o}; run: chmod 700 {})", name,
        status.st_mode & 07777, name);
  }
  return {};
}

/// Makes a directory and those above it, as far as they are missing. Returns 0 or the errno.
int make_directories(const std::filesystem::path& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return 0;
  if (errno != ENOENT || !path.has_parent_path() || path.parent_path() == path) return errno;
  if (const int error = make_directories(path.parent_path())) return error;
  return ::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST ? 0 : errno;
}

std::uint64_t boot_of_machine() {
  std::array<char, 64> text{};
  const UniqueFd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  const ssize_t got = file ? ::read(file.get(), text.data(), text.size()) : 0;
  return stable_hash(std::string_view(text.data(), static_cast<std::size_t>(std::max(got, {}))));
}

bool set_lock(int file, short kind) {
  struct flock lock{};
  lock.l_type = kind;
  lock.l_whence = SEEK_SET;
  int done = 0;
  do {
    done = ::fcntl(file, F_OFD_SETLK, &lock);
  } while (done != 0 && errno == EINTR);
  return done == 0;
}

std::string record_of(std::string_view name) {
  std::array<std::byte, 16> head{};
  store_le(std::span<std::byte>(head), kRecordMagic);
  store_le(std::span(head).subspan(8), crc32c(name));
  store_le(std::span(head).subspan(12), static_cast<std::uint32_t>(name.size()));
  return std::string(reinterpret_cast<const char*>(head.data()), head.size()) + std::string(name);
}

/// nullopt: there is no whole record.
std::optional<std::string> read_record(int file) {
  std::array<std::byte, 16> head{};
  if (!read_cached(file, 0, head)) return std::nullopt;
  const auto size = load_le<std::uint32_t>(std::span(head).subspan(12));
  if (load_le<std::uint64_t>(head) != kRecordMagic || size > kLongestName) return std::nullopt;
  std::string name(size, '\0');
  if (!read_cached(file, head.size(), std::as_writable_bytes(std::span(name)))) {
    return std::nullopt;
  }
  if (crc32c(name) != load_le<std::uint32_t>(std::span(head).subspan(8))) return std::nullopt;
  return name;
}

struct Removable {
  timespec used{};
  std::string directory;
  std::string name;
  std::uint64_t bytes = 0;

  /// The one that is used last is removed last.
  bool operator<(const Removable& other) const {
    return used.tv_sec != other.used.tv_sec ? used.tv_sec < other.used.tv_sec
                                            : used.tv_nsec < other.used.tv_nsec;
  }
};

}  // namespace

std::string cache_name_of(std::uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

int write_cached(const CacheDirectory& directory, int file, std::uint64_t offset,
                 std::span<const std::byte> bytes) {
  const int fault = directory.next_fault();
  if (fault != 0) bytes = bytes.first(bytes.size() / 2);
  const int error =
      write_all(bytes, offset, [&](std::span<const std::byte> some, std::uint64_t at) {
        return ::pwrite(file, some.data(), some.size(), static_cast<off_t>(at));
      });
  return fault != 0 ? fault : error;
}

bool read_cached(int file, std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::pread(file, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

// ---- Opening

Result<std::unique_ptr<CacheDirectory>> CacheDirectory::open(const std::filesystem::path& path,
                                                             CacheOptions options) {
  const std::string& name = path.native();
  const bool creates = options.missing == CacheOptions::Missing::Create;
  if (creates) {
    if (const int error = make_directories(path)) {
      return system_failure(error, name, "make the cache directory");
    }
  }
  const UniqueFd outer(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!outer) return system_failure(errno, name, "open the cache directory");
  CKFS_TRY_VOID(check_owner(outer, name));
  if (creates && ::mkdirat(outer.get(), "v1", 0700) != 0 && errno != EEXIST) {
    return system_failure(errno, name, "make a directory");
  }
  UniqueFd top = open_source(outer.get(), "v1");
  if (!top) return system_failure(errno, name + "/v1", "open");
  CKFS_TRY_VOID(check_owner(top, name + "/v1"));
  std::unique_ptr<CacheDirectory> directory(
      new CacheDirectory(name, std::move(top), std::move(options)));
  if (creates) {
    const UniqueFd tag(
        ::openat(outer.get(), "CACHEDIR.TAG", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (tag) (void)write_cached(*directory, tag.get(), 0, std::as_bytes(std::span(kTag)));
  }
  directory->lock_ = UniqueFd(
      ::openat(directory->top_.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!directory->lock_) return system_failure(errno, name + "/v1/lock", "open");
  if (!set_lock(directory->lock_.get(), F_WRLCK) && errno != EAGAIN && errno != EACCES) {
    return fail(ErrorCode::Unsupported,
                "{}: the file system of the cache directory has no locks (name a directory of a "
                "local disk with --cache-dir)",
                name);
  }
  (void)set_lock(directory->lock_.get(), F_UNLCK);
  directory->boot_ = boot_of_machine();
  directory->keep_free_ = directory->options_.keep_free.value_or(0);
  if (!directory->options_.keep_free) {
    struct statfs status{};
    std::uint64_t disk = 0;
    if (directory->options_.system.disk_bytes) {
      disk = directory->options_.system.disk_bytes();
    } else if (::fstatfs(directory->top_.get(), &status) == 0) {
      disk =
          static_cast<std::uint64_t>(status.f_blocks) * static_cast<std::uint64_t>(status.f_frsize);
    }
    directory->keep_free_ = std::min(disk / 20, kMostKeptFree);
  }
  return directory;
}

Result<CacheDirectory::Source> CacheDirectory::source(std::string_view name) {
  const std::string hash = cache_name_of(stable_hash(name));
  const std::string thing = name_ + "/v1/" + hash;
  if (name.size() > kLongestName) {
    return fail(ErrorCode::InvalidArgument, "{}: a source's name of {} bytes (at most {})", name_,
                name.size(), kLongestName);
  }
  Result<Source> found = fail(ErrorCode::Io, "{}: other processes keep it locked", thing);
  (void)locked([&] {
    found = [&]() -> Result<Source> {
      if (const int fault = next_fault()) return system_failure(fault, thing, "make a directory");
      if (::mkdirat(top_.get(), hash.c_str(), 0700) != 0 && errno != EEXIST) {
        return system_failure(errno, thing, "make a directory");
      }
      Source source;
      source.directory = open_source(top_.get(), hash);
      if (!source.directory) return system_failure(errno, thing, "open");
      CKFS_TRY_VOID(check_owner(source.directory, thing));
      if (const int fault = next_fault()) return system_failure(fault, thing, "make a file");
      source.record = UniqueFd(::openat(source.directory.get(), "record",
                                        O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
      if (!source.record) return system_failure(errno, thing + "/record", "open");
      if (const auto recorded = read_record(source.record.get())) {
        if (*recorded != name) {
          return fail(ErrorCode::Unsupported, "{}: it is that of another source, {}", thing,
                      quote(*recorded));
        }
      } else {
        const std::string record = record_of(name);
        if (const int error =
                write_cached(*this, source.record.get(), 0, std::as_bytes(std::span(record)))) {
          return system_failure(error, thing + "/record", "write");
        }
      }
      // clear() removes no directory whose record is locked so.
      (void)set_lock(source.record.get(), F_RDLCK);
      return source;
    }();
  });
  return found;
}

// ---- How much is there

bool CacheDirectory::take_lock() {
  return set_lock(lock_.get(), F_WRLCK);
}

void CacheDirectory::release_lock() {
  (void)set_lock(lock_.get(), F_UNLCK);
}

bool CacheDirectory::locked(const std::function<void()>& work) {
  const MutexLock lock(mutex_);
  const auto deadline = Clock::now() < busy_until_ ? Clock::time_point{} : Clock::now() + kPatience;
  while (!take_lock()) {
    if (Clock::now() >= deadline) {
      // The others that wait for the mutex are not to wait as long, one after another.
      busy_until_ = std::max(busy_until_, Clock::now() + kPatience);
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  busy_until_ = {};
  work();
  release_lock();
  return true;
}

struct CacheDirectory::Usage {
  std::uint64_t magic = kUsageMagic;
  std::uint64_t used = 0;
  std::uint64_t boot = 0;
  std::uint64_t check = 0;

  std::uint64_t sum() const {
    return crc32c({reinterpret_cast<const char*>(this), offsetof(Usage, check)});
  }
};

std::optional<std::uint64_t> CacheDirectory::counted() {
  Usage usage;
  if (!read_cached(lock_.get(), 0, std::as_writable_bytes(std::span(&usage, 1))) ||
      usage.magic != kUsageMagic || usage.check != usage.sum()) {
    return std::nullopt;
  }
  if (usage.boot == boot_ || usage.boot == trusted_boot_) return usage.used;
  last_boot_ = usage.boot;
  return std::nullopt;
}

void CacheDirectory::count(std::uint64_t used) {
  Usage usage{.used = used, .boot = boot_};
  usage.check = usage.sum();
  if (write_cached(*this, lock_.get(), 0, std::as_bytes(std::span(&usage, 1))) != 0) {
    // A count that may be wrong must not be believed. (A full disk takes these bytes: the file has
    // them already.)
    if (::ftruncate(lock_.get(), 0) != 0) return;  // nothing more can be done
  }
}

std::uint64_t CacheDirectory::missing_free(std::uint64_t bytes) const {
  std::uint64_t available = 0;
  struct statfs status{};
  if (options_.system.free_bytes) {
    available = options_.system.free_bytes();
  } else if (::fstatfs(top_.get(), &status) == 0) {
    available =
        static_cast<std::uint64_t>(status.f_bavail) * static_cast<std::uint64_t>(status.f_frsize);
  }
  const std::uint64_t wanted = bytes + keep_free_;
  return wanted > available ? wanted - available : 0;
}

bool CacheDirectory::make_room(std::uint64_t bytes) {
  if (bytes > options_.size) return false;
  const auto used = counted();
  const auto fits = [&](std::uint64_t sum) { return sum <= options_.size - bytes; };
  if (used && fits(*used) && missing_free(bytes) == 0) {
    count(*used + bytes);
    return true;
  }
  // Somewhat more than needed, so that the next blocks need no look at all files again.
  const std::uint64_t missing = missing_free(bytes);
  const std::uint64_t left = count_and_remove([&](std::uint64_t sum) {
    const std::uint64_t above = fits(sum) ? 0 : sum - (options_.size - bytes);
    const std::uint64_t excess = std::max(above, missing);
    return excess == 0 ? 0 : excess + std::min(options_.size / 16, sum / 8);
  });
  // The count of another machine that shares the directory is believed from now on.
  trusted_boot_ = last_boot_;
  const bool is_room = fits(left) && missing_free(bytes) == 0;
  count(is_room ? left + bytes : left);
  return is_room;
}

void CacheDirectory::give_back(std::uint64_t bytes) {
  if (const auto used = counted()) count(*used - std::min(*used, bytes));
}

std::uint64_t CacheDirectory::count_and_remove(
    const std::function<std::uint64_t(std::uint64_t)>& excess) {
  std::uint64_t sum = 0;
  std::priority_queue<Removable> oldest;  // the one used last is on top
  for_each_name(top_.get(), [&](const std::string& source) {
    if (!is_source_directory(source)) return;
    const UniqueFd directory = open_source(top_.get(), source);
    if (!directory) return;
    for_each_name(directory.get(), [&](const std::string& name) {
      if (is_leftover(name) && next_fault() == 0) ::unlinkat(directory.get(), name.c_str(), 0);
      struct stat status{};
      if (!is_cached_file(name) ||
          ::fstatat(directory.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
        return;
      }
      sum += disk_bytes_of(status);
      oldest.push({status.st_mtim, source, name, disk_bytes_of(status)});
      if (oldest.size() > kMostRemoved) oldest.pop();
    });
  });
  const std::uint64_t wanted = excess(sum);
  if (wanted == 0) return sum;
  std::vector<Removable> files;
  for (; !oldest.empty(); oldest.pop()) files.push_back(oldest.top());
  std::uint64_t removed = 0;
  for (auto file = files.rbegin(); file != files.rend() && removed < wanted; ++file) {
    const UniqueFd directory = open_source(top_.get(), file->directory);
    if (!directory || next_fault() != 0 ||
        ::unlinkat(directory.get(), file->name.c_str(), 0) != 0) {
      continue;
    }
    removed += file->bytes;
    evicted_.fetch_add(file->bytes, std::memory_order_relaxed);
  }
  return sum - removed;
}

// ---- For people

std::vector<CachedSource> CacheDirectory::list() const {
  std::vector<CachedSource> sources;
  for_each_name(top_.get(), [&](const std::string& source) {
    const UniqueFd directory =
        is_source_directory(source) ? open_source(top_.get(), source) : UniqueFd();
    const UniqueFd record(
        directory ? ::openat(directory.get(), "record", O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1);
    auto name = record ? read_record(record.get()) : std::nullopt;
    if (!name) return;
    CachedSource found{.name = std::move(*name)};
    for_each_name(directory.get(), [&](const std::string& file) {
      struct stat status{};
      if (!is_cached_file(file) ||
          ::fstatat(directory.get(), file.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
        return;
      }
      found.bytes += disk_bytes_of(status);
      found.used = std::max<std::int64_t>(found.used, status.st_mtim.tv_sec);
    });
    if (found.bytes > 0) sources.push_back(std::move(found));
  });
  std::ranges::sort(sources, {}, &CachedSource::name);
  return sources;
}

Result<std::uint64_t> CacheDirectory::clear(std::string_view name) {
  const std::string hash = cache_name_of(stable_hash(name));
  Result<std::uint64_t> cleared =
      fail(ErrorCode::Io, "{}: other processes keep the cache locked", name_);
  (void)locked([&] {
    cleared = [&]() -> Result<std::uint64_t> {
      const UniqueFd directory = open_source(top_.get(), hash);
      const UniqueFd record(
          directory ? ::openat(directory.get(), "record", O_RDWR | O_NOFOLLOW | O_CLOEXEC) : -1);
      if (!record || read_record(record.get()) != name) {
        return fail(ErrorCode::NotFound, "{}: the cache has nothing of it", name);
      }
      std::uint64_t removed = 0;
      int error = 0;
      for_each_name(directory.get(), [&](const std::string& file) {
        if (!is_cached_file(file) && !is_leftover(file)) return;
        struct stat status{};
        (void)::fstatat(directory.get(), file.c_str(), &status, AT_SYMLINK_NOFOLLOW);
        const int fault = next_fault();
        if (fault != 0 || ::unlinkat(directory.get(), file.c_str(), 0) != 0) {
          error = fault != 0 ? fault : errno;
          return;
        }
        removed += disk_bytes_of(status);
      });
      give_back(removed);
      // Where a mount uses the source, its directory stays, for the blocks to come.
      if (error == 0 && set_lock(record.get(), F_WRLCK) && next_fault() == 0 &&
          ::unlinkat(directory.get(), "record", 0) == 0) {
        (void)::unlinkat(top_.get(), hash.c_str(), AT_REMOVEDIR);
      }
      if (error != 0) return system_failure(error, name_ + "/v1/" + hash, "remove");
      return removed;
    }();
  });
  return cleared;
}

}  // namespace ckfs
