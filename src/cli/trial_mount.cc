// What keeps a mount from working is more than can be looked up: capabilities, security modules,
// device rules of a control group, a helper without its bit. So one is made, by the program itself,
// as its user would make it. Each step is a process that is waited for so long and no longer: one
// that waits in the kernel for a daemon that hangs cannot be trusted to come back.
#include "cli/trial_mount.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <optional>
#include <poll.h>
#include <spawn.h>
#include <string_view>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "fuse/mount.h"

namespace ckfs::cli {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A safetensors file with the BF16 numbers 1, 2, 3 and 4, and the same numbers as F32.
constexpr std::string_view kHeader =
    R"({"t":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}}         )";
constexpr std::string_view kStored("\x80\x3f\x00\x40\x40\x40\x80\x40", 8);
constexpr std::string_view kShown("\0\0\x80\x3f\0\0\x00\x40\0\0\x40\x40\0\0\x80\x40", 16);
constexpr const char* kFile = "/fp32-safetensors/model.safetensors";
static_assert(kHeader.size() == 64);

int left(Clock::time_point until) {
  const auto time = std::chrono::ceil<milliseconds>(until - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(time.count(), 0));
}

/// The status that waitpid(2) gives; nullopt: it has not ended, and is killed.
std::optional<int> wait_for(pid_t process, Clock::time_point until) {
  const UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  pollfd ended{.fd = handle.get(), .events = POLLIN, .revents = 0};
  int polled = 1;  // a kernel without pidfd_open (before 5.3) waits as long as it takes
  while (handle && (polled = ::poll(&ended, 1, left(until))) < 0 && errno == EINTR) {
  }
  int status = 0;
  if (polled == 0) {
    (void)::kill(process, SIGKILL);
    (void)::waitpid(process, &status, WNOHANG);
    return std::nullopt;
  }
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

/// Its files, which are gone with it.
class Directory {
 public:
  static Result<Directory> make() {
    const char* const top = std::getenv("TMPDIR");
    std::string name = fmt::format("{}/ckfs-doctor-XXXXXX", top && top[0] == '/' ? top : "/tmp");
    if (::mkdtemp(name.data()) == nullptr) return system_failure(errno, name, "mkdtemp");
    Directory directory(name);
    for (const std::string& path : {directory.source(), directory.target()}) {
      if (::mkdir(path.c_str(), 0700) != 0) return system_failure(errno, path, "mkdir");
    }
    const std::string file = directory.file();
    const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    const std::uint64_t size = kHeader.size();
    std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
    bytes.append(kHeader).append(kStored);
    if (!fd || ::write(fd.get(), bytes.data(), bytes.size()) != std::ssize(bytes)) {
      return system_failure(errno, file, "write");
    }
    return directory;
  }
  Directory(Directory&& other) noexcept : top_(std::move(other.top_)) { other.top_.clear(); }
  Directory& operator=(Directory&&) = delete;
  ~Directory() {
    if (top_.empty()) return;
    (void)::unlink(file().c_str());
    for (const std::string& path : {source(), target(), top_}) (void)::rmdir(path.c_str());
  }

  std::string source() const { return top_ + "/source"; }
  std::string target() const { return top_ + "/mnt"; }

 private:
  explicit Directory(std::string top) : top_(std::move(top)) {}
  std::string file() const { return source() + "/model.safetensors"; }

  std::string top_;
};

/// Runs `ckfs mount`. Empty: it is mounted; else why not.
std::string mount(const Directory& directory, Clock::time_point until) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fmt::format("pipe: {}", std::strerror(errno));
  const UniqueFd output(ends[0]);
  UniqueFd input(ends[1]);
  std::vector<std::string> words = {
      "ckfs",      "mount", "--memory",         "64MiB",           "--threads", "1", "--log-file",
      "/dev/null", "--",    directory.source(), directory.target()};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDERR_FILENO);
  pid_t process = -1;
  const int error =
      ::posix_spawn(&process, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return fmt::format("/proc/self/exe: cannot be run: {}", std::strerror(error));
  input.reset();
  const std::optional<int> status = wait_for(process, until);
  if (!status) return "the mount does not answer";
  if (WIFEXITED(*status) && WEXITSTATUS(*status) == 0) return {};
  // Its message is short, and waits in the pipe.
  std::array<char, 4096> piece{};
  const ssize_t got = ::read(output.get(), piece.data(), piece.size());
  std::string text(piece.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  while (text.ends_with('\n')) text.pop_back();
  text.erase(0, text.rfind('\n') + 1);
  for (const std::string& prefix : {std::string("ckfs: "), directory.target() + ": "}) {
    if (text.starts_with(prefix)) text.erase(0, prefix.size());
  }
  return text.empty() ? "`ckfs mount` ended without a message" : one_line(text);
}

/// Reads the view in a process of its own. Empty: its bytes are right; else what is wrong.
std::string read(const Directory& directory, Clock::time_point until) {
  const std::string path = directory.target() + kFile;
  const pid_t process = ::fork();
  if (process < 0) return fmt::format("fork: {}", std::strerror(errno));
  if (process == 0) {
    // System calls alone. 0: right; 255: wrong bytes; else an errno.
    std::array<char, 4096> bytes{};
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const ssize_t got = file < 0 ? -1 : ::pread(file, bytes.data(), bytes.size(), 0);
    if (got < 0) ::_exit(errno < 255 ? errno : EIO);
    const auto size = static_cast<std::size_t>(got);
    const bool right = size > kShown.size() && std::memcmp(bytes.data() + size - kShown.size(),
                                                           kShown.data(), kShown.size()) == 0;
    ::_exit(right ? 0 : 255);
  }
  const std::optional<int> status = wait_for(process, until);
  if (!status) return "a read of the mount does not come back";
  if (!WIFEXITED(*status)) return "the process that reads the mount was killed";
  const int code = WEXITSTATUS(*status);
  if (code == 255) return "a read of the mount gave wrong bytes";
  return code == 0 ? "" : fmt::format("a read of the mount failed: {}", std::strerror(code));
}

}  // namespace

Trial try_mount(milliseconds patience) {
  const auto begin = Clock::now();
  const Clock::time_point until = begin + patience;
  const Result<Directory> directory = Directory::make();
  if (!directory) return {.fact = directory.error().message()};
  std::string wrong = mount(*directory, until);
  if (wrong.empty()) {
    wrong = read(*directory, until);
    const auto unmounted = unmount(directory->target(), FilesInUse::Fail);
    // Without a way to abort the connection it still goes out of sight.
    if (!unmounted && !unmount(directory->target(), FilesInUse::LiveOn) && wrong.empty()) {
      wrong = unmounted.error().message();
    }
  } else {
    // A daemon that came too late.
    (void)unmount(directory->target(), FilesInUse::LiveOn);
  }
  if (!wrong.empty()) {
    const bool late = Clock::now() >= until;
    return {.fact = late ? fmt::format("{} (within {} s)", wrong, patience.count() / 1000) : wrong};
  }
  const auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - begin);
  return {.works = true,
          .fact = fmt::format("a small checkpoint was mounted, read and unmounted in {} ms",
                              took.count())};
}

}  // namespace ckfs::cli
