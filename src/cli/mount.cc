// `ckfs mount`: open the checkpoint, mount, and come back when the mount answers.
//
// The daemon is forked first of all, while the process has one thread, and does everything: so the
// parent holds nothing that has to be given back, and whatever goes wrong in the daemon before it
// serves, a crash too, reaches the parent through the pipe between them. daemon(3) was the
// alternative; it reports success before anything has been tried.
#include "fuse/mount.h"

#include <cerrno>
#include <csignal>
#include <ctime>
#include <fcntl.h>
#include <limits>
#include <malloc.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/inside.h"
#include "api/open_prepared.h"
#include "api/report.h"
#include "base/paths.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "cli/cli.h"
#include "cli/log.h"
#include "cli/mounting.h"
#include "cli/notify.h"
#include "cli/walls.h"
#include "fetch/program.h"
#include "fs/filesystem.h"
#include "fuse/mount_keeper.h"
#include "fuse/mount_table.h"
#include "io/source_store.h"
#include "sandbox/sandbox.h"
#include "source/source_name.h"

namespace ckfs::cli {

namespace {

/// As many as threads of a mount ever read at once, and some: the sandbox allows no more. Each
/// takes two pages and a descriptor.
constexpr unsigned kRings = 64;
constexpr std::uint64_t kMostDevice = 1'048'576;
constexpr std::uint64_t kNoBound = std::numeric_limits<std::uint64_t>::max();

std::uint32_t process_umask() {
  const mode_t mask = ::umask(077);
  ::umask(mask);
  return mask;
}

/// Called once the mount answers, with the version that was taken of a source on another machine.
using Ready = std::function<void(const std::string& version)>;

Result<MountKeeper> keep_mount(const MountCommand& command, std::filesystem::path target,
                               const KernelMountOptions& kernel) {
  if (!command.device) return MountKeeper::start(std::move(target), kernel);
  CKFS_TRY(UniqueFd device, take_device(static_cast<int>(*command.device)));
  return MountKeeper::adopt(std::move(target), std::move(device));
}

Result<void> open_and_serve(const MountCommand& command, const Ready& ready) {
  const std::uint32_t umask = command.words.umask.value_or(process_umask());
  std::filesystem::path target = command.mountpoint;
  if (!command.device) {
    CKFS_TRY(target, check_mountpoint(command.mountpoint, command.source));
  }
  name_mount_in_log(target.native());
  const std::string shown = shown_source(command.source);
  KernelMountOptions kernel{.source = shown, .allow_other = command.words.allow_other};
  std::optional<DaemonUser> user;
  if (!command.words.user.empty()) {
    CKFS_TRY(user, find_user(command.words.user));
    kernel.user = user->user;
    kernel.group = user->group;
  }
  CKFS_TRY(MountKeeper keeper, keep_mount(command, std::move(target), kernel));
  if (user) CKFS_TRY_VOID(become(*user));
  if (user && !keeper.is_adopted()) {
    // serve_mount() looks as that user, which is better found out before all is opened.
    if (const auto reached = check_mountpoint(keeper.target(), command.source); !reached) {
      return Failure(Error(reached.error().code(),
                           fmt::format("{} (as {})", reached.error().message(), command.words.user),
                           reached.error().system_error()));
    }
  }
  const OpenOptions options = open_options(command.words.common);
  // A daemon has neither a terminal nor a pipe of its parent's, and its fetcher gets none.
  CKFS_TRY(std::unique_ptr<SourceFiles> reading,
           prepare_source(command.source, options, kRings, !command.foreground));
  forget_credentials();
  std::vector<std::filesystem::path> own = reading->own_directories();
  CKFS_TRY(const Walls walls, raise_walls(command.mountpoint, command.words.common.open,
                                          command.words.confined, Sockets::None, own));
  CKFS_TRY(Checkpoint checkpoint,
           open_prepared(command.source, options, std::move(reading), command.words.common.tests));
  for (const std::string& note : opening_notes(checkpoint)) {
    spdlog::warn("{}: {}", shown, note);
  }
  const std::string version = source_version(checkpoint);
  if (!version.empty()) spdlog::info("{}: version {}", shown, version);
  const std::string outside = outside_links(checkpoint);
  if (command.words.allow_other && !command.words.outside_links && !outside.empty()) {
    return fail(ErrorCode::InvalidArgument,
                "{}: links lead out of it: {} (-o outside_links shows them to others, too)", shown,
                outside);
  }
  std::vector<std::filesystem::path> files = source_paths(checkpoint);
  MountFacts facts{.mountpoint = keeper.target().native(),
                   // A commit where there is one: by that the same mount can be made again.
                   .source = version.starts_with("hf://") ? version : shown,
                   .log = command.log,
                   .pid = ::getpid(),
                   .started = static_cast<std::int64_t>(std::time(nullptr))};
  Filesystem filesystem(
      std::move(checkpoint),
      {.mtime = command.words.mtime,
       .umask = umask,
       .held_bytes = command.words.allow_other ? options.use.memory / 2 : kNoBound,
       .mount = std::move(facts)});
#ifdef __GLIBC__
  malloc_trim(0);  // headers were parsed and thrown away; a daemon gives that memory back
#endif
  return serve_mount(filesystem, keeper,
                     {.source = shown,
                      .allow_other = command.words.allow_other,
                      .direct = command.words.direct,
                      .stop_now = command.words.stop_now,
                      .source_files = std::move(files),
                      .own_directories = std::move(own),
                      .confined = walls.confined,
                      .give_up =
                          [] {
                            // Not shutdown(): other threads may be logging.
                            spdlog::default_logger_raw()->flush();
                            ::_exit(0);
                          }},
                     [&] {
                       ready(version);
                       // Only once the mount answers: a user whose mount failed reads the error
                       // alone.
                       report_walls(command.mountpoint, walls);
                     });
}

/// Serves until unmounted.
Result<void> serve(const MountCommand& command, const Ready& ready) {
  return or_failure("mount", [&] { return open_and_serve(command, ready); });
}

/// Writes all of `text`; false if the pipe has no reader.
bool send(int pipe, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(pipe, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// The first byte on the pipe; the version that was taken, or an error's message, follows.
constexpr char kReady = 'r';
constexpr char kFailed = 'f';

void leave_terminal() {
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return;  // a system without it has no terminal to leave, either
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) (void)::dup2(null.get(), fd);
}

/// Those beside the standard ones.
std::vector<int> open_descriptors() {
  std::vector<int> open;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const auto fd = parse_number("descriptor", entry.path().filename());
    if (fd && *fd > STDERR_FILENO) open.push_back(static_cast<int>(*fd));
  }
  // The one that listed them is closed by now, and its number may be another's soon.
  std::erase_if(open, [](int fd) { return ::fcntl(fd, F_GETFD) < 0; });
  return open;
}

[[noreturn]] void run_daemon(const MountCommand& command, const DaemonLog& log, UniqueFd pipe) {
  if (command.with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != command.parent) ::_exit(1);  // it is gone already
  }
  for (const int fd : command.inherited) ::close(fd);
  ::setsid();
  // Not to keep the directory busy that ckfs was started in.
  (void)!::chdir("/");
  const Result<void> served = serve(command, [&](const std::string& version) {
    // A parent that is gone was interrupted: its user does not want the mount.
    if (!send(pipe.get(), kReady + version)) ::kill(::getpid(), SIGTERM);
    log.terminal->set_level(spdlog::level::off);
    leave_terminal();
    pipe.reset();
  });
  if (!served) {
    // What the parent prints is the same line.
    log.terminal->set_level(spdlog::level::off);
    if (pipe) {
      (void)send(pipe.get(), kFailed + served.error().message());
    } else {
      spdlog::error("{}", one_line(served.error().message()));
    }
  }
  spdlog::shutdown();
  // Not exit(): what the parent registered to run at exit is the parent's.
  ::_exit(served ? 0 : 1);
}

/// Waits until the daemon serves, with which version of a source on another machine, or reports why
/// not.
Result<std::string> await_daemon(pid_t daemon, const UniqueFd& pipe,
                                 const std::string& mountpoint) {
  std::string answer;
  char piece[4096];
  for (;;) {
    const ssize_t got = ::read(pipe.get(), piece, sizeof(piece));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    answer.append(piece, static_cast<std::size_t>(got));
  }
  if (answer.starts_with(kReady)) return answer.substr(1);
  int status = 0;
  while (::waitpid(daemon, &status, 0) < 0 && errno == EINTR) {
  }
  if (answer.starts_with(kFailed)) return Failure(Error(ErrorCode::Io, answer.substr(1)));
  if (WIFSIGNALED(status)) {
    return fail(ErrorCode::Internal, "{}: the daemon died before it answered (signal {})",
                mountpoint, WTERMSIG(status));
  }
  return fail(ErrorCode::Internal, "{}: the daemon ended before it answered (exit code {})",
              mountpoint, WEXITSTATUS(status));
}

Result<std::string> mount_in_background(const MountCommand& command, const DaemonLog& log) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return system_failure(errno, command.mountpoint, "pipe");
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const pid_t daemon = ::fork();
  if (daemon < 0) return system_failure(errno, command.mountpoint, "fork");
  if (daemon == 0) {
    reading.reset();  // else the daemon would keep itself from seeing that its parent is gone
    run_daemon(command, log, std::move(writing));
  }
  writing.reset();
  return await_daemon(daemon, reading, command.mountpoint);
}

/// What a daemon, whose directory is /, can use.
Result<std::string> from_root(const std::string& path) {
  CKFS_TRY(const std::filesystem::path absolute, absolute_path(path));
  return absolute.native();
}

/// The same of a source, which may be named as on the hub: that name is looked up here, for the
/// daemon's user may have another home.
Result<std::string> source_from_root(const std::filesystem::path& source,
                                     const OpenOptions& options) {
  if (is_far(source, options)) return source.native();
  CKFS_TRY(const std::filesystem::path found, find_source(source, *make_local_store()));
  return from_root(found);
}

/// The mountpoint of a mount that may not come about: made where only it is missing, and removed
/// again where it was made and keep() is not called. A mount whose daemon is dead is cleared first.
class OwnMountpoint {
 public:
  OwnMountpoint(const std::string& path, const std::string& source) : path_(path) {
    // What cannot be done here, check_mountpoint() says.
    const auto target = resolve_mountpoint(path);
    if (!target) return;
    clear(*target);
    std::error_code error;
    const std::filesystem::path origin = std::filesystem::canonical(source, error);
    // A source is never written, not even for the time until the mount is refused.
    if (!error && lies_within(*target, origin)) return;
    made_ = ::mkdir(path.c_str(), 0777) == 0;
  }
  ~OwnMountpoint() {
    if (made_) (void)::rmdir(path_.c_str());
  }
  OwnMountpoint(const OwnMountpoint&) = delete;
  OwnMountpoint& operator=(const OwnMountpoint&) = delete;
  void keep() { made_ = false; }

 private:
  static void clear(const std::filesystem::path& target) {
    const auto mounted = find_mount(target);
    if (!mounted || !*mounted || (*mounted)->type != kFilesystemType) return;
    if (ask_mount(target) == Answers::Never) (void)unmount(target, FilesInUse::LiveOn);
  }

  std::string path_;
  bool made_ = false;
};

}  // namespace

Result<void> mount_checkpoint(MountCommand command) {
  // What a caller left open (a lock, a pipe) is not for a daemon to keep.
  if (command.with_parent) {
    command.parent = ::getpid();
    command.inherited = open_descriptors();
  } else if (!command.foreground) {
    (void)::close_range(STDERR_FILENO + 1, ~0U, 0);
  }
  CKFS_TRY(command.source, source_from_root(command.source, command.words.common.open));
  if (command.mountpoint.empty()) command.mountpoint = fmt::format("/dev/fd/{}", *command.device);
  CKFS_TRY(command.mountpoint, from_root(command.mountpoint));
  CommonOptions& common = command.words.common;
  if (!common.log_file.empty()) {
    CKFS_TRY(common.log_file, from_root(common.log_file));
  }
  if (!common.open.choose.server.header_file.empty()) {
    CKFS_TRY(common.open.choose.server.header_file,
             from_root(common.open.choose.server.header_file));
  }
  if (common.open.use.spill) {
    CKFS_TRY(common.open.use.spill, absolute_path(*common.open.use.spill));
  }
  if (common.open.use.cache_dir) {
    CKFS_TRY(common.open.use.cache_dir, absolute_path(*common.open.use.cache_dir));
  }
  if (common.open.choose.config) {
    CKFS_TRY(common.open.choose.config, source_from_root(*common.open.choose.config, common.open));
  }
  std::optional<OwnMountpoint> mountpoint;
  if (!command.device) mountpoint.emplace(command.mountpoint, command.source);
  if (command.foreground) {
    CKFS_TRY_VOID(start_log(common));
    command.log = common.log_file.empty() ? "stderr" : common.log_file;
    const ServiceManager manager;
    const Result<void> served = serve(command, [&](const std::string& /*version*/) {
      if (mountpoint) mountpoint->keep();
      manager.send("READY=1");
    });
    manager.send("STOPPING=1");
    return served;
  }
  CKFS_TRY(const DaemonLog log, start_daemon_log(common));
  command.log = log.place;
  CKFS_TRY(const std::string version, mount_in_background(command, log));
  mountpoint->keep();                  // with a device it is in the foreground
  if (command.with_parent) return {};  // standard output is another program's
  if (!version.empty()) {
    (void)print(one_line(fmt::format("{}: {}", command.mountpoint, version)) + "\n");
  }
  // The mount is there, whether or not this line can be written.
  if (log.note && (command.verbose || log.is_lost)) {
    (void)print(one_line(fmt::format("{}: {}", command.mountpoint, *log.note)) + "\n");
  }
  return {};
}

void add_mount_options(CLI::App& verb, const std::shared_ptr<MountCommand>& command) {
  verb.add_option_function<std::vector<std::string>>(
          "-o",
          [command](const std::vector<std::string>& lists) {
            const Result<void> parsed = parse_mount_words(lists, command->words);
            if (!parsed) throw CLI::ValidationError(parsed.error().message());
          },
          "mount options, with commas between; repeatable (--help-all lists them)")
      ->type_name("OPTION,...")
      ->allow_extra_args(false);
  verb.add_flag_callback(
      "--no-sandbox", [command] { command->words.confined = false; },
      "do not confine the daemon (Landlock, seccomp)");
  command->words.common.log_level = "info";
  add_common(verb, command->words.common, Tuning::Yes);
}

void add_mount(CLI::App& app, Action& action) {
  auto command = std::make_shared<MountCommand>();
  CLI::App* verb = app.add_subcommand("mount", "show a checkpoint's views in a directory");
  verb->add_option("SRC", command->source, kSourceText)->required();
  verb->add_option(
      "MNT", command->mountpoint,
      "directory to mount at; made if it is missing (with --fuse-fd: its name in logs)");
  add_mount_options(*verb, command);
  verb->add_flag("-f,--foreground", command->foreground, "stay in the foreground");
  verb->add_option_function<std::string>(
          "--fuse-fd",
          [command](const std::string& value) {
            const Result<std::uint64_t> number = parse_number("--fuse-fd", value);
            if (!number) throw CLI::ValidationError(number.error().message());
            if (*number <= STDERR_FILENO || *number > kMostDevice) {
              throw CLI::ValidationError(
                  fmt::format("--fuse-fd: {} is out of range (3 to {})", *number, kMostDevice));
            }
            command->device = static_cast<unsigned>(*number);
            command->foreground = true;
          },
          "serve the mount of this descriptor of /dev/fuse, which the caller has opened and "
          "mounted; implies -f")
      ->type_name("N");
  verb->add_flag("-v,--verbose", command->verbose, "print where the log goes");
  verb->callback([command, &action] {
    if (command->mountpoint.empty() && !command->device) {
      throw CLI::ValidationError("MNT is required (or --fuse-fd)");
    }
    action = [command] { return mount_checkpoint(*command); };
  });
}

}  // namespace ckfs::cli
