// Plain blocking system calls, written out once so that the exporter itself reads as a procedure.
//
// std::filesystem and iostreams were the alternative; neither can fsync, reserve disk, set a time
// on a descriptor, or tell ENOSPC from other failures. O_NOFOLLOW and O_EXCL stand wherever a file
// is made: OUT may be a directory that others can write to.
#include "export/out_directory.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <vector>

namespace ckfs {

Result<void> OutFile::reserve(std::uint64_t size) {
  if (size == 0) return {};
  // The size is kept: a file that has its final size before it has its bytes looks complete.
  int reserved = 0;
  do {
    reserved = ::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(size));
  } while (reserved != 0 && errno == EINTR);
  if (reserved == 0) return {};
  if (errno == ENOSPC || errno == EDQUOT) return system_failure(errno, thing_, "reserve disk");
  return {};  // EOPNOTSUPP and the like: writing will tell
}

Result<void> OutFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      return system_failure(errno, thing_, "write");
    }
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

void OutFile::start_writeback(std::uint64_t offset, std::uint64_t size) {
  (void)::sync_file_range(fd_.get(), static_cast<off_t>(offset), static_cast<off_t>(size),
                          SYNC_FILE_RANGE_WRITE);
}

Result<void> OutFile::sync() {
  if (::fsync(fd_.get()) != 0) return system_failure(errno, thing_, "fsync");
  return {};
}

Result<void> OutFile::truncate(std::uint64_t size) {
  if (::ftruncate(fd_.get(), static_cast<off_t>(size)) != 0) {
    return system_failure(errno, thing_, "truncate");
  }
  return {};
}

Result<void> OutFile::set_mtime(std::int64_t seconds) {
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                             {.tv_sec = static_cast<time_t>(seconds), .tv_nsec = 0}};
  if (::futimens(fd_.get(), times) != 0) return system_failure(errno, thing_, "set the time");
  return {};
}

Result<OutDirectory> OutDirectory::open(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) {
    if (errno == ENOTDIR)
      return fail(ErrorCode::InvalidArgument, "{}: not a directory", path.native());
    return system_failure(error ? error.value() : errno, path.native(), "make the directory");
  }
  // Where a file system has no locks, two exports into one directory are the user's affair.
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return fail(ErrorCode::InvalidArgument, "{}: another export is writing here", path.native());
  }
  return OutDirectory(path.native(), std::move(fd));
}

std::optional<OutEntry> OutDirectory::entry(const std::string& path) const {
  struct stat status;
  if (::fstatat(fd_.get(), path.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  return OutEntry{.regular = S_ISREG(status.st_mode),
                  .size = static_cast<std::uint64_t>(status.st_size),
                  .allocated = static_cast<std::uint64_t>(status.st_blocks) * 512,
                  .mtime = status.st_mtim.tv_sec};
}

Result<std::optional<std::string>> OutDirectory::find_foreign(
    const std::function<bool(const std::string& path)>& known) const {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::recursive_directory_iterator it(name_, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    if (it->symlink_status(ignored).type() == fs::file_type::directory) continue;
    const std::string path = it->path().lexically_relative(name_).native();
    if (!known(path)) return path;
  }
  if (error) return system_failure(error.value(), name_, "list");
  return std::nullopt;
}

std::optional<std::uint64_t> OutDirectory::free_bytes() const {
  struct statvfs status;
  if (::fstatvfs(fd_.get(), &status) != 0) return std::nullopt;
  if (status.f_blocks == 0) return std::nullopt;  // some network file systems do not tell
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

Result<void> OutDirectory::make_parents(const std::string& path) const {
  for (std::size_t slash = path.find('/'); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    const std::string parent = path.substr(0, slash);
    if (::mkdirat(fd_.get(), parent.c_str(), 0777) != 0 && errno != EEXIST) {
      return system_failure(errno, thing(parent), "make the directory");
    }
  }
  return {};
}

Result<OutFile> OutDirectory::create(const std::string& path) const {
  CKFS_TRY_VOID(remove(path));
  UniqueFd fd(::openat(fd_.get(), path.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (fd.get() < 0) return system_failure(errno, thing(path), "create");
  return OutFile(thing(path), std::move(fd));
}

Result<OutFile> OutDirectory::reopen(const std::string& path) const {
  UniqueFd fd(::openat(fd_.get(), path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.get() < 0) return system_failure(errno, thing(path), "open");
  return OutFile(thing(path), std::move(fd));
}

Result<void> OutDirectory::rename(const std::string& from, const std::string& to) const {
  if (::renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str()) != 0) {
    return system_failure(errno, thing(to), "rename");
  }
  return {};
}

Result<void> OutDirectory::remove(const std::string& path) const {
  if (::unlinkat(fd_.get(), path.c_str(), 0) != 0 && errno != ENOENT && errno != ENOTDIR) {
    return system_failure(errno, thing(path), "remove");
  }
  return {};
}

Result<void> OutDirectory::sync_directory(const std::string& directory) const {
  if (directory.empty()) {
    if (::fsync(fd_.get()) != 0) return system_failure(errno, name_, "fsync");
    return {};
  }
  const UniqueFd fd(::openat(fd_.get(), directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0 || ::fsync(fd.get()) != 0)
    return system_failure(errno, thing(directory), "fsync");
  return {};
}

void OutDirectory::set_directory_mtime(const std::string& directory, std::int64_t seconds) const {
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                             {.tv_sec = static_cast<time_t>(seconds), .tv_nsec = 0}};
  (void)::utimensat(fd_.get(), directory.empty() ? "." : directory.c_str(), times, 0);
}

Result<std::optional<std::string>> OutDirectory::read_text(const std::string& path,
                                                           std::size_t limit) const {
  const UniqueFd fd(::openat(fd_.get(), path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.get() < 0) {
    if (errno == ENOENT) return std::nullopt;
    return system_failure(errno, thing(path), "open");
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

Result<void> OutDirectory::replace_text(const std::string& path, const std::string& text) const {
  const std::string temporary = path + ".tmp";
  CKFS_TRY(OutFile file, create(temporary));
  CKFS_TRY_VOID(file.write(0, std::as_bytes(std::span(text))));
  CKFS_TRY_VOID(file.sync());
  CKFS_TRY_VOID(rename(temporary, path));
  return sync_directory("");
}

}  // namespace ckfs
