// Plain blocking system calls, written out once so that the exporter itself reads as a procedure.
//
// The alternative was std::filesystem and iostreams. They cannot fsync, reserve disk, set a time on
// a descriptor, or distinguish ENOSPC from other failures. Other users may be able to write to OUT:
// so beneath.h opens the directory of a path, and its last name is used with O_NOFOLLOW, with
// O_EXCL to make a file, and with O_NONBLOCK to open one (opening a FIFO waits for its other end).
#include "export/out_directory.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <set>
#include <spdlog/spdlog.h>
#include <string>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <vector>

#include "base/write_all.h"
#include "io/file_system.h"

namespace ckfs {

namespace {

constexpr const char* kMarkName = "user.ckfs.export";
/// ext4 has room for 4 KiB of attributes.
constexpr std::size_t kLongestMark = 2048;

}  // namespace

Result<void> OutFile::reserve(ByteRange range) {
  if (range.empty()) return {};
  // The size is kept: a file that has its final size before it has its bytes looks complete.
  int reserved = 0;
  do {
    reserved = ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(range.begin),
                           static_cast<off_t>(range.size()));
  } while (reserved != 0 && errno == EINTR);
  if (reserved == 0) return {};
  if (errno == ENOSPC || errno == EDQUOT) return system_failure(errno, thing_, "reserve disk");
  return {};  // EOPNOTSUPP and the like: writing reports a full disk
}

void OutFile::release(ByteRange range) {
  if (range.empty() || system_->next_fault() != 0) return;
  (void)::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(range.begin), static_cast<off_t>(range.size()));
}

Result<void> OutFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  constexpr int kDontCache = 0x80;  // RWF_DONTCACHE; Debian 12's headers do not know it
  const int fault = system_->next_fault();
  if (fault != 0) bytes = bytes.first(bytes.size() / 2);
  const auto write_some = [&](std::span<const std::byte> some, std::uint64_t at) {
    const iovec part{const_cast<std::byte*>(some.data()), some.size()};  // only read from
    const auto write_with = [&](int flags) {
      return ::pwritev2(fd_.get(), &part, 1, static_cast<off_t>(at), flags);
    };
    ssize_t written = write_with(uncached_ ? kDontCache : 0);
    if (written < 0 && uncached_ && (errno == EOPNOTSUPP || errno == EINVAL)) {
      uncached_ = false;
      written = write_with(0);
    }
    return written;
  };
  if (const int error = write_all(bytes, offset, write_some)) {
    return system_failure(error, thing_, "write");
  }
  if (fault != 0) return system_failure(fault, thing_, "write");
  return {};
}

void OutFile::start_writeback(std::uint64_t offset, std::uint64_t size) {
  (void)::sync_file_range(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(size),
                          SYNC_FILE_RANGE_WRITE);
}

Result<void> OutFile::sync() {
  if (const int fault = system_->next_fault()) return system_failure(fault, thing_, "fsync");
  if (::fsync(fd_.get()) != 0) return system_failure(errno, thing_, "fsync");
  (void)::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

Result<void> OutFile::truncate(std::uint64_t size) {
  if (const int fault = system_->next_fault()) return system_failure(fault, thing_, "truncate");
  if (::ftruncate(fd_.get(), static_cast<off_t>(size)) != 0) {
    return system_failure(errno, thing_, "truncate");
  }
  return {};
}

Result<void> OutFile::set_mtime(std::int64_t seconds) {
  if (const int fault = system_->next_fault()) return system_failure(fault, thing_, "set the time");
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                             {.tv_sec = static_cast<time_t>(seconds), .tv_nsec = 0}};
  if (::futimens(fd_.get(), times) != 0) return system_failure(errno, thing_, "set the time");
  return {};
}

namespace {

/// From /proc: umask() would have to change it, for all threads.
mode_t process_umask() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("Umask:")) continue;
    return static_cast<mode_t>(std::strtoul(line.c_str() + std::strlen("Umask:"), nullptr, 8));
  }
  return 077;
}

bool has_default_acl(int directory) {
  return ::fgetxattr(directory, "system.posix_acl_default", nullptr, 0) > 0;
}

/// Makes a directory. No other group may write to it, not even for a moment: another rank may check
/// it at once with distrust(). It may get another group than the caller's (set-group-ID above it),
/// or default rights for more users and groups. Returns the errno, or 0.
int make_directory(int above, const char* name) {
  if (::mkdirat(above, name, 0755) != 0) return errno;
  const UniqueFd made(::openat(above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status;
  if (made && ::fstat(made.get(), &status) == 0 && status.st_gid == ::getegid() &&
      !has_default_acl(made.get()) && (process_umask() & S_IWGRP) == 0) {
    (void)::fchmod(made.get(), (status.st_mode & 07777) | S_IWGRP);
  }
  return 0;
}

/// The mode to make a file with that shall have `mode`. Its group is known only afterwards: until
/// then the group may do no more than other users, and may not write.
mode_t first_mode(unsigned mode) {
  return (mode & 0707) | (mode & (mode >> 3) & 5) << 3;
}

/// Sets the group's rights of `fd`, a file in `directory` that was made with first_mode(mode), as
/// OutDirectory::create() promises. Returns the errno, or 0. Rights that cannot be taken away are
/// an error. Rights that cannot be given are not: a file system may have one mode for all files.
int set_group_rights(int fd, int directory, const struct stat& status, unsigned mode) {
  const mode_t all = (status.st_mode & 7) << 3;
  if (status.st_gid != ::getegid()) {
    const mode_t taken = (mode >> 3 & 7) != (mode & 7) ? status.st_mode & 070 & ~all : 0;
    if (taken != 0) return ::fchmod(fd, status.st_mode & 07777 & ~taken) != 0 ? errno : 0;
    if ((all & mode & S_IWGRP & ~status.st_mode) != 0) {
      (void)::fchmod(fd, (status.st_mode & 07777) | S_IWGRP);
    }
    return 0;
  }
  if ((mode & 070 & ~status.st_mode) == 0) return 0;
  const UniqueFd looked(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!looked || has_default_acl(looked.get())) return 0;
  const mode_t given = mode & 070 & ~process_umask() & ~status.st_mode;
  if (given != 0) (void)::fchmod(fd, (status.st_mode & 07777) | given);
  return 0;
}

/// Whether an entry of `acl` (linux/posix_acl_xattr.h) lets another user or group write than root,
/// the caller and the caller's own group. `group` is that of the file. Requires: the mask of the
/// ACL lets write (it is the group bits of the mode).
bool lets_others_write(std::span<const std::byte> acl, gid_t group) {
  posix_acl_xattr_entry entry;
  for (std::size_t at = sizeof(posix_acl_xattr_header); at + sizeof(entry) <= acl.size();
       at += sizeof(entry)) {
    std::memcpy(&entry, acl.data() + at, sizeof(entry));
    if ((entry.e_perm & ACL_WRITE) == 0) continue;
    if (entry.e_tag == ACL_USER && entry.e_id != 0 && entry.e_id != ::geteuid()) return true;
    if (entry.e_tag == ACL_GROUP && entry.e_id != ::getegid()) return true;
    if (entry.e_tag == ACL_GROUP_OBJ && group != ::getegid()) return true;
  }
  return false;
}

/// The same for the open file `fd`. Requires: its mode lets its group write.
Result<bool> lets_others_write(int fd, gid_t group) {
  std::vector<std::byte> acl(std::size_t{64} << 10);  // XATTR_SIZE_MAX: no attribute is longer
  const ssize_t size = ::fgetxattr(fd, "system.posix_acl_access", acl.data(), acl.size());
  if (size >= 0)
    return lets_others_write(std::span(acl).first(static_cast<std::size_t>(size)), group);
  // There is no ACL, so the group bits of the mode are those of the group.
  if (errno == ENODATA || errno == EOPNOTSUPP) return group != ::getegid();
  return system_failure(errno, "its ACL", "read");
}

}  // namespace

Result<OutDirectory> OutDirectory::open(const std::filesystem::path& path, OutSystem system,
                                        Others others) {
  std::error_code error;
  std::filesystem::path last = std::filesystem::absolute(path, error);
  while (last.has_relative_path() && (!last.has_filename() || last.filename() == ".")) {
    last = last.parent_path();
  }
  std::filesystem::create_directories(last.parent_path(), error);
  const UniqueFd above(::open(last.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const int looked = errno;
  const int fault = above   ? make_directory(above.get(), last.filename().c_str())
                    : error ? error.value()
                            : looked;
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) {
    const int opening = errno;
    if (opening == ENOTDIR)
      return fail(ErrorCode::InvalidArgument, "{}: not a directory", path.native());
    const int why = fault != 0 && fault != EEXIST ? fault : opening;
    return Failure(Error(why == ENOENT ? ErrorCode::NotFound : ErrorCode::Io,
                         fmt::format("{}: cannot make the directory: {} (give an OUT where you may "
                                     "write)",
                                     path.native(), std::strerror(why)),
                         why));
  }
  // Where a file system has no locks, users must not export twice into one directory at once.
  const int lock = others == Others::No ? LOCK_EX : LOCK_SH;
  if (::flock(fd.get(), lock | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return fail(ErrorCode::InvalidArgument,
                "{}: another export is writing here (wait until it ends, or give another OUT)",
                path.native());
  }
  return OutDirectory(path.native(), std::move(fd), std::move(system), others);
}

Failure OutDirectory::failure(int error, const std::string& path, std::string_view what) const {
  if (error != ELOOP) return system_failure(error, thing(path), what);
  return Failure(Error(ErrorCode::InvalidArgument,
                       fmt::format("{}: a symbolic link below {} is in its path (exports follow "
                                   "none: remove it)",
                                   thing(path), name_),
                       error));
}

Result<OutDirectory::LastName> OutDirectory::last_name(const std::string& path,
                                                       std::string_view what) const {
  const std::size_t slash = path.rfind('/');
  LastName at{open_directory_beneath(fd_.get(), parent_of(path), system_->walk),
              slash == std::string::npos ? path : path.substr(slash + 1)};
  if (!at.directory) return failure(errno, path, what);
  return at;
}

std::optional<OutEntry> OutDirectory::entry(const std::string& path) const {
  const Result<LastName> at = last_name(path, "look");
  struct stat status;
  if (!at || ::fstatat(at->directory.get(), at->name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    return std::nullopt;
  }
  return OutEntry{.regular = S_ISREG(status.st_mode),
                  .size = static_cast<std::uint64_t>(status.st_size),
                  .allocated = static_cast<std::uint64_t>(status.st_blocks) * 512,
                  .mtime = status.st_mtim.tv_sec};
}

std::optional<std::string> OutDirectory::distrust(const std::string& path) const {
  struct stat status;
  std::optional<LastName> at;
  if (path.empty()) {
    if (::fstat(fd_.get(), &status) != 0) return std::nullopt;
  } else {
    Result<LastName> found = last_name(path, "look");
    if (!found ||
        ::fstatat(found->directory.get(), found->name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        S_ISLNK(status.st_mode)) {
      return std::nullopt;  // nothing that would be opened
    }
    at = *std::move(found);
  }
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return fmt::format("belongs to user {}", status.st_uid);
  }
  constexpr const char* kByOthers = "others may write to it";
  if ((status.st_mode & S_IWOTH) != 0) return kByOthers;
  if ((status.st_mode & S_IWGRP) == 0) return std::nullopt;
  UniqueFd opened;
  if (at) {
    opened.reset(::openat(at->directory.get(), at->name.c_str(),
                          O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!opened) return std::string("cannot be opened: ") + std::strerror(errno);
  }
  const Result<bool> by_others = lets_others_write(at ? opened.get() : fd_.get(), status.st_gid);
  if (!by_others) return by_others.error().message();
  if (*by_others) return kByOthers;
  return std::nullopt;
}

Result<std::optional<std::string>> OutDirectory::find_foreign(
    const std::function<bool(const std::string& path)>& known) const {
  std::vector<std::string> pending{""};  // directories to list
  while (!pending.empty()) {
    const std::string path = std::move(pending.back());
    pending.pop_back();
    CKFS_TRY(const std::vector<std::string> found, names(path));
    const UniqueFd fd = open_directory_beneath(fd_.get(), path, system_->walk);
    if (!fd) return failure(errno, path, "list");
    for (const std::string& name : found) {
      std::string inner = path.empty() ? name : fmt::format("{}/{}", path, name);
      struct stat status;
      const bool is_directory =
          ::fstatat(fd.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
          S_ISDIR(status.st_mode);
      if (is_directory) {
        pending.push_back(std::move(inner));
      } else if (!known(inner)) {
        return inner;
      }
    }
  }
  return std::nullopt;
}

Result<std::vector<std::string>> OutDirectory::names(const std::string& path) const {
  UniqueFd fd = open_directory_beneath(fd_.get(), path, system_->walk);
  if (!fd) return failure(errno, path, "list");
  const std::unique_ptr<DIR, decltype([](DIR* open) { ::closedir(open); })> directory(
      ::fdopendir(fd.get()));
  if (!directory) return failure(errno, path, "list");
  (void)fd.release();  // closed with the DIR
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* const found = ::readdir(directory.get());
    if (!found && errno != 0) return failure(errno, path, "list");
    if (!found) return names;
    const std::string_view name = found->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
}

std::optional<std::uint64_t> OutDirectory::free_bytes() const {
  struct statvfs status;
  if (::fstatvfs(fd_.get(), &status) != 0) return std::nullopt;
  if (status.f_blocks == 0) return std::nullopt;  // some network file systems do not report it
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

Result<void> OutDirectory::make_parents(const std::string& path) const {
  for (std::size_t slash = path.find('/'); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    const std::string parent = path.substr(0, slash);
    CKFS_TRY(const LastName at, last_name(parent, "make the directory"));
    if (const int fault = system_->next_fault())
      return failure(fault, parent, "make the directory");
    const int fault = make_directory(at.directory.get(), at.name.c_str());
    if (fault != 0 && fault != EEXIST) return failure(fault, parent, "make the directory");
  }
  return {};
}

Result<UniqueFd> OutDirectory::open_at(const std::string& path, int flags, unsigned mode) const {
  const bool creates = (flags & O_CREAT) != 0;
  const std::string_view what = creates ? "create" : "open";
  CKFS_TRY(const LastName at, last_name(path, what));
  if (const int fault = creates ? system_->next_fault() : 0) return failure(fault, path, what);
  UniqueFd fd(::openat(at.directory.get(), at.name.c_str(),
                       flags | O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, first_mode(mode)));
  if (!fd) return failure(errno, path, what);
  struct stat status;
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return fail(ErrorCode::InvalidArgument, "{}: not a regular file", thing(path));
  }
  if (!creates) return fd;
  const bool may_be_anothers = (flags & O_EXCL) == 0 && status.st_uid != ::geteuid();
  if (may_be_anothers) return fd;
  if (const int fault = set_group_rights(fd.get(), at.directory.get(), status, mode)) {
    return failure(fault, path, what);
  }
  return fd;
}

Result<OutFile> OutDirectory::create(const std::string& path, unsigned mode) const {
  CKFS_TRY_VOID(remove(path));
  CKFS_TRY(UniqueFd fd, open_at(path, O_CREAT | O_EXCL, mode));
  return OutFile(thing(path), std::move(fd), system_);
}

Result<OutFile> OutDirectory::reopen(const std::string& path) const {
  CKFS_TRY(UniqueFd fd, open_at(path, 0));
  return OutFile(thing(path), std::move(fd), system_);
}

Result<OutFile> OutDirectory::open_shared(const std::string& path, unsigned mode) const {
  CKFS_TRY(UniqueFd fd, open_at(path, O_CREAT, mode));
  return OutFile(thing(path), std::move(fd), system_);
}

bool OutDirectory::is_at(const std::string& path, const OutFile& file) const {
  const Result<LastName> at = last_name(path, "look");
  if (!at) return at.error().code() != ErrorCode::NotFound;
  struct stat named, open;
  if (::fstatat(at->directory.get(), at->name.c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno != ENOENT;
  }
  struct statfs system;
  const bool comparable = ::fstatfs(file.fd_.get(), &system) == 0 &&
                          traits_of(system.f_type).stable_inodes &&
                          ::fstat(file.fd_.get(), &open) == 0;
  return !comparable || (named.st_dev == open.st_dev && named.st_ino == open.st_ino);
}

Result<UniqueFd> OutDirectory::lock(const std::string& path) const {
  CKFS_TRY(UniqueFd fd, open_at(path, O_CREAT));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return UniqueFd();
  return fd;
}

Result<void> OutDirectory::rename(const std::string& from, const std::string& to) const {
  CKFS_TRY(const LastName source, last_name(from, "rename"));
  CKFS_TRY(const LastName target, last_name(to, "rename"));
  if (const int fault = system_->next_fault()) return failure(fault, to, "rename");
  if (::renameat(source.directory.get(), source.name.c_str(), target.directory.get(),
                 target.name.c_str()) != 0) {
    return failure(errno, to, "rename");
  }
  return {};
}

Result<UniqueFd> OutDirectory::open_nameless(const std::string& path) const {
  CKFS_TRY(const LastName at, last_name(path, "open"));
  UniqueFd fd(::openat(at.directory.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.get() < 0) return failure(errno, path, "open");
  return fd;
}

Result<void> OutDirectory::remove(const std::string& path) const {
  if (const int fault = system_->next_fault()) return failure(fault, path, "remove");
  const Result<LastName> at = last_name(path, "remove");
  const int error = !at ? at.error().system_error()
                    : ::unlinkat(at->directory.get(), at->name.c_str(), 0) != 0 ? errno
                                                                                : 0;
  if (error == 0 || error == ENOENT || error == ENOTDIR) return {};
  return failure(error, path, "remove");
}

Result<void> OutDirectory::remove_directory(const std::string& path) const {
  if (const int fault = system_->next_fault()) return failure(fault, path, "remove");
  const Result<LastName> at = last_name(path, "remove");
  const int error = !at ? at.error().system_error()
                    : ::unlinkat(at->directory.get(), at->name.c_str(), AT_REMOVEDIR) != 0 ? errno
                                                                                           : 0;
  if (error == 0 || error == ENOENT || error == ENOTEMPTY || error == EEXIST) return {};
  return failure(error, path, "remove");
}

/// Opens a file, or OUT, for its mark. Empty where that fails.
UniqueFd OutDirectory::open_to_mark(const std::string& path) const {
  if (path.empty()) return open_directory_beneath(fd_.get(), path, system_->walk);
  const Result<LastName> at = last_name(path, "open");
  if (!at) return {};
  return UniqueFd(::openat(at->directory.get(), at->name.c_str(),
                           O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
}

std::optional<std::string> OutDirectory::mark(const std::string& path) const {
  const UniqueFd fd = open_to_mark(path);
  if (!fd) return std::nullopt;
  std::string text(kLongestMark + 1, '\0');
  const ssize_t size = ::fgetxattr(fd.get(), kMarkName, text.data(), text.size());
  if (size < 0 || static_cast<std::size_t>(size) > kLongestMark) return std::nullopt;
  text.resize(static_cast<std::size_t>(size));
  return text;
}

Result<bool> OutDirectory::set_mark(const std::string& path, const std::string& text) const {
  if (text.size() > kLongestMark || !system_->keeps_marks) return false;
  if (const int fault = system_->next_fault()) return failure(fault, path, "mark");
  const UniqueFd fd = open_to_mark(path);
  // File systems have many errors for attributes that they do not keep.
  return fd && ::fsetxattr(fd.get(), kMarkName, text.data(), text.size(), 0) == 0;
}

Result<void> OutDirectory::remove_mark() const {
  const UniqueFd fd = open_to_mark("");
  if (!fd) return failure(errno, "", "open");
  if (::fgetxattr(fd.get(), kMarkName, nullptr, 0) < 0) return {};
  if (const int fault = system_->next_fault()) return failure(fault, "", "unmark");
  if (::fremovexattr(fd.get(), kMarkName) != 0 && errno != ENODATA) {
    return failure(errno, "", "unmark");
  }
  return sync_directory("");
}

void OutDirectory::remove_empty_parents(const std::vector<std::string>& files) const {
  std::set<std::string, std::greater<>> parents;  // inner ones first
  for (const std::string& file : files) {
    for (std::size_t slash = file.rfind('/'); slash != std::string::npos && slash > 0;
         slash = file.rfind('/', slash - 1)) {
      if (!parents.insert(file.substr(0, slash)).second) break;
    }
  }
  for (const std::string& parent : parents) {
    const Result<LastName> at = last_name(parent, "remove");
    if (at && system_->next_fault() == 0)
      ::unlinkat(at->directory.get(), at->name.c_str(), AT_REMOVEDIR);
  }
}

Result<void> OutDirectory::sync_directory(const std::string& directory) const {
  const UniqueFd fd = open_directory_beneath(fd_.get(), directory, system_->walk);
  if (!fd) return failure(errno, directory, "fsync");
  if (system_->sync_directory(fd.get()) == 0) return {};
  const int error = errno;
  // Some network and FUSE file systems. The files themselves are synced.
  if (error != EINVAL && error != ENOTSUP) return failure(error, directory, "fsync");
  if (!unsynced_->exchange(true)) {
    spdlog::warn(
        "{}: its file system cannot sync a directory: after a power failure, files that "
        "were written last may be missing",
        thing(directory));
  }
  return {};
}

void OutDirectory::set_directory_mtime(const std::string& directory, std::int64_t seconds) const {
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                             {.tv_sec = static_cast<time_t>(seconds), .tv_nsec = 0}};
  const UniqueFd fd = open_directory_beneath(fd_.get(), directory, system_->walk);
  if (fd) (void)::futimens(fd.get(), times);
}

Result<std::optional<std::string>> OutDirectory::read_text(const std::string& path,
                                                           std::size_t limit) const {
  const Result<LastName> at = last_name(path, "open");
  if (!at && at.error().system_error() == ENOENT) return std::nullopt;
  if (!at) return Failure(at.error());
  const UniqueFd fd(::openat(at->directory.get(), at->name.c_str(),
                             O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd) {
    if (errno == ENOENT) return std::nullopt;
    return failure(errno, path, "open");
  }
  struct stat status;
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    return fail(ErrorCode::InvalidArgument, "{}: not a regular file", thing(path));
  }
  std::string text;
  std::vector<char> piece(std::size_t{1} << 16);
  for (;;) {
    const ssize_t got = ::read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_failure(errno, thing(path), "read");
    if (got == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(got));
    if (text.size() > limit) {
      return fail(ErrorCode::InvalidArgument, "{}: longer than {} bytes", thing(path), limit);
    }
  }
}

/// Where other processes write, too, a random name: pods may share a host's name and process
/// numbers. Otherwise a fixed one: the next run uses again what a killed one has left.
std::string OutDirectory::temporary_name(const std::string& path) const {
  if (others_ == Others::No) return path + ".tmp";
  std::uint64_t bits = 0;
  (void)!::getrandom(&bits, sizeof bits, 0);
  return fmt::format("{}.{:016x}.tmp", path, bits);
}

Result<void> OutDirectory::replace_text(const std::string& path, const std::string& text) const {
  const std::string temporary = temporary_name(path);
  CKFS_TRY_VOID(write_text(temporary, text));
  CKFS_TRY_VOID(rename(temporary, path));
  return sync_directory(parent_of(path));
}

Result<bool> OutDirectory::put_text(const std::string& path, const std::string& text) const {
  const std::string temporary = temporary_name(path);
  CKFS_TRY_VOID(write_text(temporary, text));
  CKFS_TRY(const LastName from, last_name(temporary, "link"));
  CKFS_TRY(const LastName to, last_name(path, "link"));
  if (const int fault = system_->next_fault()) return failure(fault, path, "link");
  const int error =
      ::linkat(from.directory.get(), from.name.c_str(), to.directory.get(), to.name.c_str(), 0) == 0
          ? 0
          : errno;
  // If the server's answer was lost, a second try of the kernel finds the link that the first one
  // made. (The count alone does not show it: sshfs reports 1 for every file.)
  struct stat status;
  const bool linked = error == 0 || (::fstatat(from.directory.get(), from.name.c_str(), &status,
                                               AT_SYMLINK_NOFOLLOW) == 0 &&
                                     status.st_nlink == 2);
  CKFS_TRY_VOID(remove(temporary));
  if (!linked && error != EEXIST) return failure(error, path, "link");
  if (linked) CKFS_TRY_VOID(sync_directory(parent_of(path)));
  return linked;
}

Result<void> OutDirectory::write_text(const std::string& path, const std::string& text) const {
  CKFS_TRY(OutFile file, create(path, 0644));  // distrust()
  CKFS_TRY_VOID(file.write(0, std::as_bytes(std::span(text))));
  return file.sync();
}

}  // namespace ckfs
