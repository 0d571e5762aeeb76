// libfuse has a mount function of its own. It is not used, for two reasons: its errors go to stderr
// in several lines and never name a remedy, and it unmounts by path without looking whether the
// mount is still its own. A session of libfuse takes a /dev/fuse that is mounted already.

#include "fuse/kernel_mount.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <vector>

#include "fuse/mount_table.h"

namespace ckfs {
namespace {

namespace stdfs = std::filesystem;

constexpr const char* kDevice = "/dev/fuse";
/// On every Linux: a miscellaneous device with a number of its own.
const dev_t kDeviceNumber = makedev(10, 229);
constexpr std::string_view kContainerHint =
    "in a container: --device /dev/fuse --cap-add SYS_ADMIN";

/// Where fusermount3 is; empty: nowhere.
std::string find_fusermount() {
  for (std::string& program : fusermount_places()) {
    if (::access(program.c_str(), X_OK) == 0) return std::move(program);
  }
  return {};
}

/// Options of fusermount3 are one comma-separated string; it takes a backslash as escape.
std::string escape_option(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == ',' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

struct Finished {
  bool succeeded = false;
  std::string text;  // the last line that the program printed, without its name
};

/// A running fusermount3.
struct Running {
  pid_t pid = -1;
  UniqueFd output;
};

/// Starts fusermount3; `channel`, if not negative, is the socket for its answer.
Result<Running> start_fusermount(std::vector<std::string> arguments, int channel) {
  const std::string program = find_fusermount();
  if (program.empty()) {
    return fail(ErrorCode::Io,
                "fusermount3: not found: users other than root need it (apt-get install fuse3)");
  }
  arguments.insert(arguments.begin(), "fusermount3");  // how it names itself in messages
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  std::string variable = fmt::format("_FUSE_COMMFD={}", channel);
  std::vector<char*> environment;
  for (char** at = environ; *at; ++at) environment.push_back(*at);
  if (channel >= 0) environment.push_back(variable.data());
  environment.push_back(nullptr);

  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_failure(errno, program, "pipe");
  UniqueFd output(ends[0]);
  const UniqueFd input(ends[1]);

  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, input.get(), STDERR_FILENO);
  // A descriptor onto itself: the child's copy loses close-on-exec.
  if (channel >= 0) ::posix_spawn_file_actions_adddup2(&actions, channel, channel);
  Running running;
  const int error = ::posix_spawn(&running.pid, program.c_str(), &actions, nullptr, argv.data(),
                                  environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return system_failure(error, program, "cannot be run");
  running.output = std::move(output);
  return running;
}

Finished finish(const Running& running) {
  std::string text;
  std::array<char, 512> piece{};
  while (true) {
    const ssize_t got = ::read(running.output.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  int status = 0;
  pid_t ended = 0;
  do {
    ended = ::waitpid(running.pid, &status, 0);
  } while (ended < 0 && errno == EINTR);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  text.erase(0, text.rfind('\n') + 1);
  if (const auto colon = text.find(": "); text.starts_with("fusermount3: ")) {
    text.erase(0, colon + 2);
  }
  if (text.empty()) text = "failed without a message";
  return {ended == running.pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, text};
}

/// The descriptor that comes through `socket`; none where the other side closed without one.
UniqueFd receive_descriptor(int socket) {
  char byte = 0;
  iovec piece{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  const cmsghdr* header = got > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (!header || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) return {};
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return UniqueFd(descriptor);
}

/// The remedy for a message of fusermount3; empty where the message is enough.
std::string_view hint_for(std::string_view text) {
  if (text.find(std::strerror(EPERM)) != std::string_view::npos) {
    return " (it must be set-user-ID root; in a container, run as root)";
  }
  if (text.find(kDevice) != std::string_view::npos &&
      text.find(std::strerror(EACCES)) != std::string_view::npos) {
    return " (let users mount: `sudo chmod 666 /dev/fuse`)";
  }
  return "";
}

Result<UniqueFd> mount_by_fusermount(const stdfs::path& target, const KernelMountOptions& options) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return system_failure(errno, target.native(), "socketpair");
  }
  const UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  const std::string text =
      fmt::format("ro,nosuid,nodev,default_permissions,subtype=ckfs{},fsname={}",
                  options.allow_other ? ",allow_other" : "", escape_option(options.source));
  CKFS_TRY(const Running running,
           start_fusermount({"-o", text, "--", target.native()}, theirs.get()));
  theirs.reset();  // so that receiving ends where the program ends
  UniqueFd device = receive_descriptor(ours.get());
  const Finished finished = finish(running);
  if (device) return device;
  return fail(ErrorCode::Io, "{}: fusermount3: {}{}", target.native(), finished.text,
              hint_for(finished.text));
}

bool is_fuse(int device) {
  struct stat status{};
  return ::fstat(device, &status) == 0 && S_ISCHR(status.st_mode) &&
         status.st_rdev == kDeviceNumber;
}

}  // namespace

std::vector<std::string> fusermount_places() {
  const char* const path = std::getenv("PATH");
  const std::string directories = fmt::format("{}:/usr/bin:/bin:/usr/local/bin", path ? path : "");
  std::vector<std::string> places;
  for (std::size_t begin = 0; begin < directories.size();) {
    const std::size_t end = std::min(directories.find(':', begin), directories.size());
    if (directories[begin] == '/') {
      places.push_back(directories.substr(begin, end - begin) + "/fusermount3");
    }
    begin = end + 1;
  }
  return places;
}

Result<UniqueFd> mount_device(const stdfs::path& target, const KernelMountOptions& options) {
  const bool root = ::geteuid() == 0;
  UniqueFd device(::open(kDevice, O_RDWR | O_CLOEXEC));
  if (!device) {
    const int error = errno;
    if (error == ENOENT || error == ENODEV || error == ENXIO) {
      return fail(ErrorCode::Io, "{}: no such device: load it with `modprobe fuse` ({})", kDevice,
                  kContainerHint);
    }
    if (!root) return mount_by_fusermount(target, options);
    return fail(ErrorCode::Io, "{}: {} ({})", kDevice, std::strerror(error), kContainerHint);
  }
  // Containers are known to have an empty file here; mount(2) would call that an invalid argument.
  if (!is_fuse(device.get())) {
    return fail(ErrorCode::Io, "{}: not the FUSE device: make it with `mknod {} c 10 229` ({})",
                kDevice, kDevice, kContainerHint);
  }
  const std::string text =
      fmt::format("fd={},rootmode=40000,user_id={},group_id={},default_permissions{}", device.get(),
                  options.user, options.group, options.allow_other ? ",allow_other" : "");
  const std::string type(kFilesystemType);
  if (::mount(options.source.c_str(), target.c_str(), type.c_str(),
              MS_RDONLY | MS_NOSUID | MS_NODEV, text.c_str()) == 0) {
    return device;
  }
  const int error = errno;
  if (error == EPERM && !root) {
    device.reset();
    return mount_by_fusermount(target, options);
  }
  if (error == EPERM) {
    return fail(ErrorCode::Io, "{}: mounting is not permitted: CAP_SYS_ADMIN is missing ({})",
                target.native(), kContainerHint);
  }
  if (error == ENODEV) {
    return fail(ErrorCode::Io, "{}: this kernel has no FUSE: load it with `modprobe fuse`",
                target.native());
  }
  return system_failure(error, target.native(), "mount");
}

Result<UniqueFd> take_device(int number) {
  if (::fcntl(number, F_GETFD) < 0) {
    return fail(ErrorCode::InvalidArgument, "fuse-fd: {} is not open", number);
  }
  if (!is_fuse(number)) {
    return fail(ErrorCode::InvalidArgument, "fuse-fd: {} is not of {}", number, kDevice);
  }
  pollfd poll{.fd = number, .events = 0, .revents = 0};
  if (::poll(&poll, 1, 0) > 0 && (poll.revents & POLLERR) != 0) {
    return fail(ErrorCode::InvalidArgument,
                "fuse-fd: {} is not mounted (mount(2) with the option fd={} comes first)", number,
                number);
  }
  // Its threads wait in read(2).
  const int flags = ::fcntl(number, F_GETFL);
  if (::fcntl(number, F_SETFL, flags & ~O_NONBLOCK) != 0 ||
      ::fcntl(number, F_SETFD, FD_CLOEXEC) != 0) {
    return system_failure(errno, "fuse-fd", "fcntl");
  }
  return UniqueFd(number);
}

Result<void> unmount_target(const stdfs::path& target, Detach detach) {
  const int flags = UMOUNT_NOFOLLOW | (detach == Detach::Now ? MNT_DETACH : 0);
  if (::umount2(target.c_str(), flags) == 0) return {};
  const int error = errno;
  std::string reason = std::strerror(error);
  if (error == EPERM && ::geteuid() != 0) {
    std::vector<std::string> arguments = {"-u"};
    if (detach == Detach::Now) arguments.emplace_back("-z");
    arguments.insert(arguments.end(), {"--", target.native()});
    CKFS_TRY(const Running running, start_fusermount(arguments, -1));
    const Finished finished = finish(running);
    if (finished.succeeded) return {};
    reason = "fusermount3: " + finished.text;
  }
  if (reason.find(std::strerror(EBUSY)) != std::string::npos) {
    return Failure(Error(ErrorCode::Io,
                         fmt::format("{}: busy: a program works in it (`fuser -vm {}` names it)",
                                     target.native(), target.native()),
                         EBUSY));
  }
  return fail(ErrorCode::Io, "{}: cannot be unmounted: {}", target.native(), reason);
}

std::optional<dev_t> device_at(const stdfs::path& path) {
  struct statx status{};
  constexpr int kFlags = AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT | AT_SYMLINK_NOFOLLOW;
  if (::statx(AT_FDCWD, path.c_str(), kFlags, 0, &status) != 0) return std::nullopt;
  return makedev(status.stx_dev_major, status.stx_dev_minor);
}

Result<bool> unmount_own(const stdfs::path& target, dev_t device) {
  // umount2(2) takes a path, so a mount made between these two lines would be hit; there is no
  // other call that names a mount and still lets other programs unmount it, as a path does.
  if (device_at(target) != device) return false;
  CKFS_TRY_VOID(unmount_target(target, Detach::Now));
  return true;
}

UniqueFd open_abort(dev_t device) {
  constexpr int kFlags = O_WRONLY | O_CLOEXEC;
  const std::string name = fmt::format("{}/abort", minor(device));
  UniqueFd file(::open(("/sys/fs/fuse/connections/" + name).c_str(), kFlags));
  if (file) return file;
  // Containers do not mount it. There is one fusectl, and a mount of it needs no path.
  const UniqueFd fusectl(::fsopen("fusectl", FSOPEN_CLOEXEC));
  if (::fsconfig(fusectl.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) return {};
  const UniqueFd top(::fsmount(fusectl.get(), FSMOUNT_CLOEXEC, 0));
  return UniqueFd(::openat(top.get(), name.c_str(), kFlags));
}

}  // namespace ckfs
