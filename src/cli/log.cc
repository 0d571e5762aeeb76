// A log file may lie where others can write (/var/log, /tmp), and the daemon may be root's. So the
// file is checked when it is opened: it must not be another user's link, nor a FIFO that would wait
// for a reader; nor, where the daemon chose the name itself, another user's file. spdlog's own file
// sinks open by name, again and again; this one keeps the descriptor that was checked.
#include "cli/log.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <mutex>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/sinks/syslog_sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <vector>

#include "base/text.h"
#include "base/unique_fd.h"
#include "cli/notify.h"

namespace ckfs::cli {

namespace {

constexpr const char* kSystemLog = "/dev/log";
constexpr const char* kFilePattern = "%Y-%m-%dT%H:%M:%S.%e%z %P %l %@";

/// "/mnt/model: ", once a mount has been named. Set before a second thread is started.
std::string& mount_prefix() {
  static std::string prefix;
  return prefix;
}

/// %*: the message in one line, whatever names of a checkpoint are in it. %@ of a log that
/// many mounts share: the same, and its mount first, where the message does not begin with it.
class OneLineFlag : public spdlog::custom_flag_formatter {
 public:
  explicit OneLineFlag(bool names_mount) : names_mount_(names_mount) {}
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    const std::string line = one_line({message.payload.data(), message.payload.size()});
    const std::string& prefix = mount_prefix();
    if (names_mount_ && !line.starts_with(prefix)) {
      out.append(prefix.data(), prefix.data() + prefix.size());
    }
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<OneLineFlag>(names_mount_);
  }

 private:
  const bool names_mount_;
};

/// %&: the priority that syslog has for the level.
class PriorityFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/,
              spdlog::memory_buf_t& out) override {
    const auto level = message.level;
    out.push_back(level >= spdlog::level::err    ? '3'
                  : level == spdlog::level::warn ? '4'
                  : level == spdlog::level::info ? '6'
                                                 : '7');
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<PriorityFlag>();
  }
};

/// Appends to an open file. A full disk loses lines and nothing else.
class DescriptorSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit DescriptorSink(UniqueFd fd) : fd_(std::move(fd)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    (void)!::write(fd_.get(), line.data(), line.size());
  }
  void flush_() override {}

 private:
  UniqueFd fd_;
};

using SinkPointer = std::shared_ptr<spdlog::sinks::sink>;

constexpr const char* kTerminalPattern = "ckfs: %l: %*";
constexpr const char* kStderrPattern = "ckfs: %l: %@";
constexpr const char* kJournalPattern = "<%&>%@";
constexpr const char* kSystemLogPattern = "%@";

SinkPointer with_pattern(SinkPointer sink, const char* pattern) {
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<OneLineFlag>('*', false)
      .add_flag<OneLineFlag>('@', true)
      .add_flag<PriorityFlag>('&');
  formatter->set_pattern(pattern);
  sink->set_formatter(std::move(formatter));
  return sink;
}

void use_sinks(std::vector<SinkPointer> sinks, const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("ckfs", sinks.begin(), sinks.end());
  logger->set_level(spdlog::level::from_str(level == "error" ? "err" : level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

/// Opens `name` in `directory` for appending. `thing` is for messages.
Result<UniqueFd> open_log(int directory, const std::string& name, const std::string& thing,
                          mode_t mode) {
  constexpr int kFlags = O_WRONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
  UniqueFd fd(::openat(directory, name.c_str(), kFlags | O_CREAT | O_NOFOLLOW, mode));
  if (!fd && errno == ELOOP) {
    // /dev/stderr is a link; so is what its owner has laid. Others' are not followed.
    struct stat link{};
    if (::fstatat(directory, name.c_str(), &link, AT_SYMLINK_NOFOLLOW) == 0 && link.st_uid != 0 &&
        link.st_uid != ::geteuid()) {
      return fail(ErrorCode::InvalidArgument,
                  "{}: cannot write the log: a symbolic link of another user", thing);
    }
    fd = UniqueFd(::openat(directory, name.c_str(), kFlags | O_CREAT, mode));
  }
  if (!fd && errno == ENXIO) {
    return fail(ErrorCode::InvalidArgument, "{}: cannot write the log: not a regular file", thing);
  }
  if (!fd) return system_failure(errno, thing, "cannot write the log");
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) return system_failure(errno, thing, "cannot write the log");
  if (!S_ISREG(status.st_mode) && !S_ISCHR(status.st_mode)) {
    return fail(ErrorCode::InvalidArgument, "{}: cannot write the log: not a regular file", thing);
  }
  return fd;
}

bool system_log_listens() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string_view(kSystemLog).copy(address.sun_path, sizeof address.sun_path - 1);
  for (const int type : {SOCK_DGRAM, SOCK_STREAM}) {
    const UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const auto* const where = reinterpret_cast<const sockaddr*>(&address);
    if (socket && ::connect(socket.get(), where, sizeof address) == 0) return true;
  }
  return false;
}

/// The directory of a daemon's log; empty where the environment names none.
std::filesystem::path log_directory() {
  const auto variable = [](const char* name) -> std::filesystem::path {
    const char* const value = std::getenv(name);
    return value && value[0] == '/' ? value : "";
  };
  if (const auto state = variable("XDG_STATE_HOME"); !state.empty()) return state / "ckfs";
  if (::geteuid() == 0) return "/var/log";
  if (const auto home = variable("HOME"); !home.empty()) return home / ".local/state/ckfs";
  return {};
}

/// The daemon's own log file: directly in /var/log, elsewhere in a directory of its own.
Result<UniqueFd> open_own_log(const std::filesystem::path& path) {
  const std::filesystem::path directory = path.parent_path();
  std::error_code ignored;  // opening reports it
  std::filesystem::create_directories(directory.parent_path(), ignored);
  ::mkdir(directory.c_str(), 0700);
  const UniqueFd inside(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!inside) return system_failure(errno, path.native(), "cannot write the log");
  CKFS_TRY(UniqueFd fd, open_log(inside.get(), path.filename(), path.native(), 0600));
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != ::geteuid() ||
      status.st_nlink != 1) {
    return fail(ErrorCode::InvalidArgument, "{}: cannot write the log: not a file of this user's",
                path.native());
  }
  return fd;
}

}  // namespace

Result<void> start_log(const CommonOptions& options) {
  if (options.log_file.empty()) {
    use_sinks({with_pattern(std::make_shared<spdlog::sinks::stderr_sink_mt>(),
                            stderr_is_journal() ? kJournalPattern : kStderrPattern)},
              options.log_level);
    return {};
  }
  CKFS_TRY(UniqueFd fd, open_log(AT_FDCWD, options.log_file, options.log_file, 0666));
  use_sinks({with_pattern(std::make_shared<DescriptorSink>(std::move(fd)), kFilePattern)},
            options.log_level);
  return {};
}

Result<DaemonLog> start_daemon_log(const CommonOptions& options) {
  DaemonLog log;
  log.terminal = with_pattern(std::make_shared<spdlog::sinks::stderr_sink_mt>(), kTerminalPattern);
  log.terminal->set_level(spdlog::level::warn);
  const auto use = [&](SinkPointer sink, const char* pattern) {
    use_sinks({with_pattern(std::move(sink), pattern), log.terminal}, options.log_level);
    return log;
  };
  if (!options.log_file.empty()) {
    CKFS_TRY(UniqueFd fd, open_log(AT_FDCWD, options.log_file, options.log_file, 0666));
    log.place = options.log_file;
    return use(std::make_shared<DescriptorSink>(std::move(fd)), kFilePattern);
  }
  if (system_log_listens()) {
    log.place = "syslog";
    // LOG_NDELAY: a log with streams is not reached any more from the sandbox.
    return use(std::make_shared<spdlog::sinks::syslog_sink_mt>("ckfs", LOG_PID | LOG_NDELAY,
                                                               LOG_DAEMON, true),
               kSystemLogPattern);
  }
  const std::filesystem::path path = log_directory() / "ckfs.log";
  Result<UniqueFd> fd = path.is_absolute()
                            ? open_own_log(path)
                            : fail(ErrorCode::Io, "HOME: not set, nor XDG_STATE_HOME");
  if (!fd) {
    log.note = fmt::format("there is no system log, and no log (-o log_file=FILE makes one): {}",
                           fd.error().message());
    log.is_lost = true;
    return use(std::make_shared<spdlog::sinks::null_sink_mt>(), kSystemLogPattern);
  }
  log.place = path.native();
  log.note = fmt::format("there is no system log: the log goes to {}", path.native());
  return use(std::make_shared<DescriptorSink>(std::move(*fd)), kFilePattern);
}

void name_mount_in_log(const std::string& mountpoint) {
  mount_prefix() = one_line(mountpoint) + ": ";
}

}  // namespace ckfs::cli
