// What is mounted is read from /proc/self/mountinfo and not from the mount itself: one whose daemon
// is dead cannot answer what it was. /etc/mtab and libmount give the same with one more file that
// can be wrong.

#include "fuse/mount_table.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <poll.h>
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
  // Not stat(2): the kernel remembers the attributes of a root that nobody serves any more.
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
    entries.push_back(
        {unescape(fields[4]), unescape(fields[dash + 1]), unescape(fields[dash + 2])});
  }
  return entries;
}

Result<std::optional<MountEntry>> find_mount(const stdfs::path& target) {
  std::ifstream file("/proc/self/mountinfo");
  if (!file) return fail(ErrorCode::Io, "/proc/self/mountinfo: cannot be read");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::optional<MountEntry> top;  // later lines lie over earlier ones
  for (MountEntry& entry : parse_mountinfo(text)) {
    if (entry.target == target.native()) top = std::move(entry);
  }
  return top;
}

Result<stdfs::path> resolve_mountpoint(const stdfs::path& path) {
  CKFS_TRY(const stdfs::path absolute, absolute_path(path));
  std::error_code error;
  const stdfs::path whole = stdfs::canonical(absolute, error);
  if (!error) return whole;
  const stdfs::path parent = stdfs::canonical(absolute.parent_path(), error);
  if (error) return system_failure(error.value(), path.native(), "cannot be resolved");
  return parent / absolute.filename();
}

Answers ask_mount(const stdfs::path& path) {
  // A process and not a thread: what waits for a daemon that holds its request cannot be killed,
  // and a process does not end before its last thread. This one holds nothing of ours.
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return ask(path.c_str());
  UniqueFd answers(ends[0]);
  UniqueFd answering(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) return ask(path.c_str());
  if (child == 0) {
    // Only system calls: another thread may have held any lock.
    const auto kept = static_cast<unsigned>(answering.get());
    if (kept > 0) (void)::close_range(0, kept - 1, 0);
    (void)::close_range(kept + 1, ~0U, 0);
    const auto answer = static_cast<std::uint8_t>(ask(path.c_str()));
    ::_exit(::write(answering.get(), &answer, 1) == 1 ? 0 : 1);
  }
  answering.reset();
  std::uint8_t answer = 0;
  pollfd ready{.fd = answers.get(), .events = POLLIN, .revents = 0};
  const auto last = Clock::now() + kPatience;
  int polled = 0;
  do {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(last - Clock::now()).count();
    polled = ::poll(&ready, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
  } while (polled < 0 && errno == EINTR);
  const bool told = polled > 0 && ::read(answers.get(), &answer, 1) == 1;
  (void)::kill(child, SIGKILL);
  (void)::waitpid(child, nullptr, told ? 0 : WNOHANG);
  return told ? static_cast<Answers>(answer) : Answers::Late;
}

}  // namespace ckfs
