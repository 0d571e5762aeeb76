// Lines are appended and not synced: work is done again that a power failure takes away, and a line
// that it leaves half written is not believed.
#include "check/resume_file.h"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <span>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/units.h"
#include "base/write_all.h"

namespace ckfs {

namespace {

constexpr std::size_t kMostBytes = 256_MiB;

Result<std::string> read_all(int fd, const std::string& path) {
  std::string text;
  std::array<char, 64_KiB> piece;
  for (;;) {
    const ssize_t got = ::pread(fd, piece.data(), piece.size(), static_cast<off_t>(text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_failure(errno, path, "read");
    if (got == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(got));
    if (text.size() > kMostBytes) {
      return fail(ErrorCode::InvalidArgument, "{}: longer than {} bytes", path, kMostBytes);
    }
  }
}

int write_at(int fd, std::string_view text, std::uint64_t offset) {
  return write_all(std::as_bytes(std::span(text)), offset,
                   [&](std::span<const std::byte> some, std::uint64_t at) {
                     return ::pwrite(fd, some.data(), some.size(), static_cast<off_t>(at));
                   });
}

/// Errors: InvalidArgument: what the file says cannot be believed.
Result<void> check_owner(int fd, const std::string& path) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return system_failure(errno, path, "look");
  if (!S_ISREG(status.st_mode)) {
    return fail(ErrorCode::InvalidArgument, "{}: not a regular file", path);
  }
  if (status.st_uid != ::geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return fail(ErrorCode::InvalidArgument,
                "{}: other users may write to it, so what it says is not believed (remove it)",
                path);
  }
  return {};
}

}  // namespace

Result<ResumeFile> ResumeFile::open(const std::string& path, const std::string& header,
                                    const std::function<bool(std::string_view line)>& take) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!fd) {
    if (errno == ELOOP) {
      return fail(ErrorCode::InvalidArgument, "{}: a symbolic link (name a file)", path);
    }
    return system_failure(errno, path, "open");
  }
  CKFS_TRY_VOID(check_owner(fd.get(), path));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return fail(ErrorCode::InvalidArgument, "{}: another ckfs is at work with it", path);
  }
  CKFS_TRY(const std::string text, read_all(fd.get(), path));
  if (!text.empty() && !text.starts_with(kBegin.substr(0, text.size()))) {
    return fail(ErrorCode::InvalidArgument,
                "{}: not a file that an interrupted ckfs run left (name another one)", path);
  }
  const std::string first = header + "\n";
  std::size_t good = 0;
  if (text.starts_with(first)) {
    good = first.size();
    for (std::size_t end = 0; (end = text.find('\n', good)) != std::string::npos; good = end + 1) {
      if (!take(std::string_view(text).substr(good, end - good))) break;
    }
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(good)) != 0) {
    return system_failure(errno, path, "truncate");
  }
  ResumeFile file(path, std::move(fd), good);
  if (good == 0) CKFS_TRY_VOID(file.add(first));
  return file;
}

Result<void> ResumeFile::add(std::string_view lines) {
  const MutexLock lock(*mutex_);
  if (const int error = write_at(fd_.get(), lines, size_)) {
    return system_failure(error, path_, "write");
  }
  size_ += lines.size();
  return {};
}

Result<void> ResumeFile::remove() {
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) {
    return system_failure(errno, path_, "remove");
  }
  return {};
}

Result<void> replace_file(const std::string& path, std::string_view text) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    return fail(ErrorCode::InvalidArgument, "{}: not a regular file", path);
  }
  const std::string temporary = path + ".new";
  if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) {
    return system_failure(errno, temporary, "remove");
  }
  const UniqueFd fd(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
  if (!fd) return system_failure(errno, temporary, "create");
  int error = write_at(fd.get(), text, 0);
  if (error == 0 && ::fsync(fd.get()) != 0) error = errno;
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) {
    (void)::unlink(temporary.c_str());
    return system_failure(error, path, "write");
  }
  const std::filesystem::path above = std::filesystem::path(path).parent_path();
  const UniqueFd directory(
      ::open(above.empty() ? "." : above.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory) (void)::fsync(directory.get());  // some file systems cannot
  return {};
}

}  // namespace ckfs
