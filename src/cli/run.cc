// `ckfs run`: a mount for one command. The command is a child of this process, which waits: so what
// it has mounted is gone when the command is, and a script needs no trap.
//
// Exit codes are those of timeout(1) and env(1): the command's own; 128 and the number of the
// signal that ended it; 125 where there was no mount, 126 and 127 where there was no command.
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cli.h"
#include "cli/mounting.h"
#include "fuse/mount.h"

namespace ckfs::cli {

namespace {

constexpr int kNoMount = 125;
constexpr int kNotRun = 126;
constexpr int kNotFound = 127;
constexpr int kSignalled = 128;

struct RunCommand {
  std::shared_ptr<MountCommand> mount = std::make_shared<MountCommand>();
  std::vector<std::string> words;
};

/// A new directory, removed when it is empty.
class OwnDirectory {
 public:
  static Result<std::unique_ptr<OwnDirectory>> make() {
    std::error_code error;
    std::filesystem::path parent = std::filesystem::temp_directory_path(error);
    if (error) parent = "/tmp";
    std::string path = (parent / "ckfs-run-XXXXXX").native();
    if (::mkdtemp(path.data()) == nullptr) return system_failure(errno, path, "make a directory");
    return std::make_unique<OwnDirectory>(std::move(path));
  }
  explicit OwnDirectory(std::string path) : path_(std::move(path)) {}
  ~OwnDirectory() { (void)::rmdir(path_.c_str()); }
  OwnDirectory(const OwnDirectory&) = delete;
  OwnDirectory& operator=(const OwnDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

std::string with_mountpoint(std::string word, const std::string& mountpoint) {
  constexpr std::string_view kPlace = "{}";
  for (std::size_t at = 0; (at = word.find(kPlace, at)) != std::string::npos;) {
    word.replace(at, kPlace.size(), mountpoint);
    at += mountpoint.size();
  }
  return word;
}

volatile std::sig_atomic_t command_process = 0;

void pass_on(int signal) {
  if (command_process > 0) (void)::kill(static_cast<pid_t>(command_process), signal);
}

/// From the terminal they reach the command, too, which decides what they mean; the others are for
/// this process, and passed on.
constexpr int kOfTerminal[] = {SIGINT, SIGQUIT};
constexpr int kPassedOn[] = {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

/// Runs the command to its end, and gives its exit code.
Result<int> run_words(const std::vector<std::string>& words, const std::string& mountpoint) {
  std::vector<std::string> given;
  for (const std::string& word : words) given.push_back(with_mountpoint(word, mountpoint));
  std::vector<char*> arguments;
  for (std::string& word : given) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  struct sigaction before[std::size(kOfTerminal)]{};
  struct sigaction ignore{}, pass{};
  ignore.sa_handler = SIG_IGN;
  pass.sa_handler = pass_on;
  sigset_t passed, old;
  sigemptyset(&passed);
  for (const int signal : kPassedOn) sigaddset(&passed, signal);
  // Until the child has a number, a signal waits.
  ::sigprocmask(SIG_BLOCK, &passed, &old);
  for (std::size_t i = 0; i < std::size(kOfTerminal); ++i) {
    ::sigaction(kOfTerminal[i], &ignore, &before[i]);
  }
  const pid_t started = ::fork();
  if (started < 0) return system_failure(errno, words.front(), "fork");
  if (started == 0) {
    for (std::size_t i = 0; i < std::size(kOfTerminal); ++i) {
      ::sigaction(kOfTerminal[i], &before[i], nullptr);
    }
    // As this program found them: main() ignores these.
    ::signal(SIGPIPE, SIG_DFL);
    ::signal(SIGXFSZ, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &old, nullptr);
    ::setenv("CKFS_MOUNT", mountpoint.c_str(), 1);
    ::execvp(arguments[0], arguments.data());
    const int code = errno == ENOENT ? kNotFound : kNotRun;
    const std::string line =
        fmt::format("ckfs: {}: {}\n", one_line(given.front()), std::strerror(errno));
    (void)!::write(STDERR_FILENO, line.data(), line.size());
    ::_exit(code);
  }
  command_process = started;
  for (const int signal : kPassedOn) ::sigaction(signal, &pass, nullptr);
  ::sigprocmask(SIG_SETMASK, &old, nullptr);
  int status = 0;
  while (::waitpid(started, &status, 0) < 0 && errno == EINTR) {
  }
  command_process = 0;
  return WIFSIGNALED(status) ? kSignalled + WTERMSIG(status) : WEXITSTATUS(status);
}

Result<Exit> run_mounted(const RunCommand& command) {
  CKFS_TRY(const std::unique_ptr<OwnDirectory> directory, OwnDirectory::make());
  MountCommand mount = *command.mount;
  mount.mountpoint = directory->path();
  mount.with_parent = true;
  CKFS_TRY_VOID(mount_checkpoint(std::move(mount)));
  const Result<int> code = run_words(command.words, directory->path());
  // Processes that the command has left behind may still read open files.
  const Result<Unmounted> unmounted = unmount(directory->path(), FilesInUse::LiveOn);
  if (!code) return Failure(code.error());
  if (!unmounted) {
    const std::string line = fmt::format("ckfs: {}\n", one_line(unmounted.error().message()));
    (void)!::write(STDERR_FILENO, line.data(), line.size());
  }
  return static_cast<Exit>(*code);
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto command = std::make_shared<RunCommand>();
  CLI::App* verb = app.add_subcommand("run", "mount for as long as a command runs");
  verb->add_option("SRC", command->mount->source, kSourceText)->required();
  verb->add_option("COMMAND", command->words,
                   "program and its arguments, behind --; {} in them is the directory of the views")
      ->required();
  add_mount_options(*verb, command->mount);
  command->mount->words.common.log_level = "warn";
  verb->callback([command, &action] {
    action.failed = static_cast<Exit>(kNoMount);
    action = [command] { return run_mounted(*command); };
  });
}

}  // namespace ckfs::cli
