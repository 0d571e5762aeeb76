// Mounts are read from /proc/self/mountinfo and not from the mount itself: one whose daemon is dead
// cannot answer. /etc/mtab and libmount give the same with one more file that can be wrong.

#include "fuse/mount_table.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <map>
#include <poll.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "base/paths.h"
#include "base/unique_fd.h"

namespace ckfs {
namespace {

namespace stdfs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// How long a daemon may take to answer what needs no byte of its source.
constexpr std::chrono::seconds kPatience{2};
/// ... and until a file has come from it, for which an answer may have to wait for another.
constexpr std::chrono::seconds kFilePatience{5};
constexpr std::size_t kLongestFile = std::size_t{64} << 20;

/// The kernel writes space, tab, newline and backslash as \ooo.
std::string unescape(std::string_view text) {
  std::string plain;
  const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size() && is_octal(text[i + 1]) && is_octal(text[i + 2]) &&
        is_octal(text[i + 3])) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                 (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

Answers ask(const char* path) {
  // Not stat(2): the kernel remembers the attributes of a root that is no longer served.
  struct statvfs status{};
  const bool gone = ::statvfs(path, &status) != 0 && (errno == ENOTCONN || errno == ECONNABORTED);
  return gone ? Answers::Never : Answers::Yes;
}

}  // namespace

std::vector<MountEntry> parse_mountinfo(std::string_view text) {
  std::vector<MountEntry> entries;
  for (const std::string_view line : split(text, '\n')) {
    // 36 35 98:0 /root /target options optional... - type source superoptions
    const auto fields = split(line, ' ');
    std::size_t dash = 6;
    while (dash < fields.size() && fields[dash] != "-") ++dash;
    if (dash + 2 >= fields.size()) continue;
    entries.push_back({unescape(fields[4]), unescape(fields[dash + 1]), unescape(fields[dash + 2]),
                       dash + 3 < fields.size() ? std::string(fields[dash + 3]) : std::string()});
  }
  return entries;
}

namespace {

Result<std::vector<MountEntry>> all_mounts() {
  std::ifstream file("/proc/self/mountinfo");
  if (!file) return fail(ErrorCode::Io, "/proc/self/mountinfo: cannot be read");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return parse_mountinfo(text);
}

}  // namespace

Result<std::vector<MountEntry>> ckfs_mounts() {
  CKFS_TRY(std::vector<MountEntry> all, all_mounts());
  std::map<std::string_view, std::size_t> top;  // later lines lie over earlier ones
  for (std::size_t i = 0; i < all.size(); ++i) top[all[i].target] = i;
  std::vector<MountEntry> mounts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].type == kFilesystemType && top.at(all[i].target) == i) mounts.push_back(all[i]);
  }
  return mounts;
}

Result<std::vector<MountEntry>> own_mounts() {
  CKFS_TRY(std::vector<MountEntry> mounts, ckfs_mounts());
  if (::geteuid() == 0) return mounts;
  const std::string own = fmt::format(",user_id={},", ::geteuid());
  std::erase_if(mounts, [&](const MountEntry& mount) {
    return ("," + mount.options + ",").find(own) == std::string::npos;
  });
  return mounts;
}

Result<std::optional<MountEntry>> find_mount(const stdfs::path& target) {
  CKFS_TRY(std::vector<MountEntry> all, all_mounts());
  std::optional<MountEntry> top;  // later lines lie over earlier ones
  for (MountEntry& entry : all) {
    if (entry.target == target.native()) top = std::move(entry);
  }
  return top;
}

Result<stdfs::path> resolve_mountpoint(const stdfs::path& path) {
  CKFS_TRY(const stdfs::path absolute, absolute_path(path));
  std::error_code error;
  const stdfs::path parent = stdfs::canonical(absolute.parent_path(), error);
  if (error) return system_failure(error.value(), path.native(), "cannot be resolved");
  const stdfs::path named = parent / absolute.filename();
  CKFS_TRY(const auto mounted, find_mount(named));
  if (mounted) return named;
  const stdfs::path whole = stdfs::canonical(named, error);
  return error ? named : whole;
}

namespace {

/// What a process of its own writes until it ends, or `last`.
struct Told {
  enum class End : std::uint8_t { Ended, Late, TooLong, NotAsked } end = End::NotAsked;
  std::string text;
};

/// Runs `work`, which gets the descriptor to write to, in a process of its own, not in a thread: a
/// thread that waits for a daemon cannot be killed, and a process does not end before its last
/// thread. That process holds nothing of ours. `work` may only make system calls: another thread
/// may have held any lock.
template <typename Work>
Told told_by_a_process(Work work, std::size_t longest, std::chrono::milliseconds patience) {
  Told told;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return told;
  UniqueFd answers(ends[0]);
  UniqueFd answering(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return told;
  if (child == 0) {
    const auto kept = static_cast<unsigned>(answering.get());
    if (kept > 0) (void)::close_range(0, kept - 1, 0);
    (void)::close_range(kept + 1, ~0U, 0);
    work(answering.get());
    ::_exit(0);
  }
  answering.reset();
  const auto last = Clock::now() + patience;
  std::array<char, 65536> piece{};
  told.end = Told::End::Late;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(last - Clock::now()).count();
    pollfd ready{.fd = answers.get(), .events = POLLIN, .revents = 0};
    const int polled = ::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (polled < 0 && errno == EINTR) continue;
    if (polled <= 0) break;
    const ssize_t got = ::read(answers.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      told.end = Told::End::Ended;
      break;
    }
    told.text.append(piece.data(), static_cast<std::size_t>(got));
    if (told.text.size() > longest) {
      told.end = Told::End::TooLong;
      break;
    }
  }
  (void)::kill(child, SIGKILL);
  (void)::waitpid(child, nullptr, told.end == Told::End::Late ? WNOHANG : 0);
  return told;
}

bool write_all(int to, const char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t written = ::write(to, bytes, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes += written;
    size -= static_cast<std::size_t>(written);
  }
  return true;
}

/// By system calls alone. 0, or an errno; ENOEXEC: not a regular file of the file system at `top`.
int copy_file(const char* top, const char* name, int to) {
  constexpr int kPath = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  constexpr int kFile = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const int root = ::open(top, kPath);
  const int inside = root < 0 ? -1 : ::openat(root, ".ckfs", kPath);
  // Opening a file that is not regular may have effects.
  struct stat of_root{}, of_file{};
  if (inside < 0 || ::fstat(root, &of_root) != 0 ||
      ::fstatat(inside, name, &of_file, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno;
  }
  if (!S_ISREG(of_file.st_mode) || of_file.st_dev != of_root.st_dev) return ENOEXEC;
  const int file = ::openat(inside, name, kFile);
  if (file < 0) return errno;
  if (::fstat(file, &of_file) != 0) return errno;
  if (!S_ISREG(of_file.st_mode) || of_file.st_dev != of_root.st_dev) return ENOEXEC;
  std::array<char, 65536> piece;
  while (true) {
    const ssize_t got = ::read(file, piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno;
    if (got == 0) return 0;
    if (!write_all(to, piece.data(), static_cast<std::size_t>(got))) return EPIPE;
  }
}

}  // namespace

Answers ask_mount(const stdfs::path& path) {
  const Told told = told_by_a_process(
      [&](int to) {
        const auto answer = static_cast<char>(ask(path.c_str()));
        (void)write_all(to, &answer, 1);
      },
      1, kPatience);
  if (told.end == Told::End::Late) return Answers::Late;
  // A process that ended without an answer was killed: that is not the mount's fault.
  return told.text.empty() ? ask(path.c_str()) : static_cast<Answers>(told.text[0]);
}

Result<std::string> read_of_mount(const stdfs::path& mountpoint, const std::string& name) {
  const auto not_one = [&] {
    return fail(ErrorCode::InvalidArgument, "{}: not a ckfs mount", mountpoint.native());
  };
  const auto target = resolve_mountpoint(mountpoint);
  if (!target) return not_one();
  CKFS_TRY(const auto mounted, find_mount(*target));
  if (!mounted || mounted->type != kFilesystemType) return not_one();
  // Behind the file's bytes comes what became of it.
  int result = 0;
  Told told = told_by_a_process(
      [&](int to) {
        const int error = copy_file(target->c_str(), name.c_str(), to);
        (void)write_all(to, reinterpret_cast<const char*>(&error), sizeof error);
      },
      kLongestFile + sizeof result, kFilePatience);
  switch (told.end) {
    case Told::End::Ended:
      break;
    case Told::End::Late:
      return fail(ErrorCode::Io,
                  "{}: the mount's daemon does not answer (within {} s; ckfs umount removes it)",
                  mountpoint.native(), kFilePatience.count());
    case Told::End::TooLong:
      return fail(ErrorCode::Corrupt, "{}: .ckfs/{}: longer than {} bytes", mountpoint.native(),
                  name, kLongestFile);
    case Told::End::NotAsked:
      return fail(ErrorCode::Io, "{}: no process can be started to ask it (pids.max, ulimit -u)",
                  mountpoint.native());
  }
  if (told.text.size() < sizeof result) {
    return fail(ErrorCode::Io, "{}: the process that asked it was killed", mountpoint.native());
  }
  const std::size_t size = told.text.size() - sizeof result;
  std::memcpy(&result, told.text.data() + size, sizeof result);
  if (result == ENOTCONN || result == ECONNABORTED) {
    return fail(ErrorCode::Io, "{}: the mount's daemon is dead (ckfs umount clears it)",
                mountpoint.native());
  }
  if (result == ENOEXEC) {
    return fail(ErrorCode::Corrupt, "{}: .ckfs/{}: not a regular file of the mount",
                mountpoint.native(), name);
  }
  if (result != 0) return system_failure(result, mountpoint.native(), "read .ckfs/" + name);
  told.text.resize(size);
  return std::move(told.text);
}

}  // namespace ckfs
