// A request is a byte and the number of a thread, an answer a packet: the outcome, an errno, a
// message, and the device. The alternative was a thread that keeps its capabilities: it shares its
// memory with the others, and so separates nothing.
#include "fuse/mount_keeper.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <linux/futex.h>
#include <optional>
#include <string_view>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/start_thread.h"

namespace ckfs {
namespace {

constexpr char kMount = 'm';
constexpr char kUnmount = 'u';
constexpr char kAbort = 'a';
constexpr char kIsGone = 'g';   // the thread has ended, or is being killed
constexpr char kIsDying = 'd';  // the thread is being killed

enum class Outcome : std::uint8_t { Done, NotDone, Failed };

struct Head {
  Outcome outcome = Outcome::Failed;
  int error = 0;
};
constexpr std::size_t kLongestMessage = 8192;

/// Tells one process that the first thread of another has ended, even while its other threads live.
/// The kernel stores 0 at the address that set_tid_address(2) named, and wakes the thread that
/// waits there. A pidfd or the end of a socket tells it only when all threads have ended.
class FirstThread {
 public:
  /// Made before the fork. Without a shared page it tells nothing.
  FirstThread() {
    void* const page =
        ::mmap(nullptr, sizeof(Word), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED) lives_ = new (page) Word(1);
  }

  /// Called in the watched process, by its only thread. The page stays mapped.
  void is_this() const {
    if (lives_) ::syscall(SYS_set_tid_address, lives_);
  }

  bool has_ended() const { return lives_ && lives_->load() == 0; }

  /// False: the kernel tells nothing.
  bool wait_for_end() const {
    if (!lives_) return false;
    while (!has_ended()) {
      // Not FUTEX_PRIVATE_FLAG: the waker is another process.
      const bool told = ::syscall(SYS_futex, lives_, FUTEX_WAIT, 1, nullptr, nullptr, 0) == 0;
      if (!told && errno != EINTR && errno != EAGAIN) return false;
    }
    return true;
  }

 private:
  using Word = std::atomic<std::uint32_t>;
  static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(pid_t));
  Word* lives_ = nullptr;
};

/// Whether /proc shows the processes that this one would signal by their numbers.
bool proc_is_ours() {
  std::array<char, 32> link{};
  const ssize_t size = ::readlink("/proc/self", link.data(), link.size());
  return size > 0 && std::string_view(link.data(), static_cast<std::size_t>(size)) ==
                         std::to_string(::getpid());
}

/// Whether a thread has SIGKILL pending (the kernel adds it to each thread that a signal will end)
/// or, unless `only_dying`, has ended. A thread that /proc does not show counts as alive.
bool is_gone_thread(pid_t thread, bool only_dying) {
  if (thread <= 0) return false;  // of another PID namespace
  if (::kill(thread, 0) != 0 && errno == ESRCH) return !only_dying;
  if (!proc_is_ours()) return false;
  constexpr unsigned long long kKill = 1ULL << (SIGKILL - 1);
  std::ifstream status("/proc/" + std::to_string(thread) + "/status");
  for (std::string line; std::getline(status, line);) {
    const std::string_view text(line);
    const bool has_signals = text.starts_with("SigPnd:") || text.starts_with("ShdPnd:");
    if (has_signals && (std::strtoull(line.c_str() + 7, nullptr, 16) & kKill) != 0) return true;
    if (!only_dying && (text.starts_with("State:\tZ") || text.starts_with("State:\tX"))) {
      return true;
    }
  }
  return false;
}

void answer(int channel, const Head& head, std::string_view message, int descriptor) {
  message = message.substr(0, kLongestMessage);
  std::array<iovec, 2> parts = {iovec{const_cast<Head*>(&head), sizeof head},
                                iovec{const_cast<char*>(message.data()), message.size()}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr packet{};
  packet.msg_iov = parts.data();
  packet.msg_iovlen = parts.size();
  if (descriptor >= 0) {
    packet.msg_control = control.data();
    packet.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&packet);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  while (::sendmsg(channel, &packet, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

void answer(int channel, const Error& error) {
  answer(channel, {Outcome::Failed, error.system_error()}, error.message(), -1);
}

/// Takes another name in lists of processes, so that a search for the daemon by its command line
/// finds one process. The arguments of a process lie one behind another in memory.
void rename_process() {
  ::prctl(PR_SET_NAME, "ckfs-keeper");
  std::ifstream file("/proc/self/cmdline");
  const std::string line{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  constexpr std::string_view kName = "ckfs-keeper";
  if (line.size() <= kName.size()) return;
  std::fill_n(program_invocation_name, line.size(), '\0');
  kName.copy(program_invocation_name, kName.size());
}

[[noreturn]] void keep(int channel, const std::filesystem::path& target,
                       const KernelMountOptions& options, const FirstThread& daemon) {
  // Signals are for the daemon, which ends this process by closing its end.
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::setsid();
  (void)!::chdir("/");
  // Holds none of the daemon's open files (its parent's pipe, a terminal).
  const int own = ::dup3(channel, STDERR_FILENO + 1, O_CLOEXEC) < 0 ? channel : STDERR_FILENO + 1;
  if (own == STDERR_FILENO + 1) (void)::close_range(STDERR_FILENO + 2, ~0U, 0);
  const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (null) (void)::dup2(null.get(), fd);  // a system without /dev/null has no terminal to leave
  }
  rename_process();
  std::optional<std::thread> watch = start_thread([own, daemon] {
    if (daemon.wait_for_end()) ::shutdown(own, SHUT_RDWR);  // as if it had closed its end
  });
  if (watch) watch->detach();

  bool asked = false;
  std::optional<dev_t> mounted;
  UniqueFd abort;
  while (true) {
    std::array<char, 1 + sizeof(pid_t)> packet{};
    const ssize_t got = ::recv(own, packet.data(), packet.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      if (abort && daemon.has_ended()) (void)!::write(abort.get(), "1", 1);
      ::_exit(0);
    }
    const char request = packet[0];
    pid_t thread = 0;
    std::memcpy(&thread, packet.data() + 1, sizeof thread);
    if (request == kMount && !std::exchange(asked, true)) {
      const Result<UniqueFd> device = mount_device(target, options);
      if (device) mounted = device_at(target);
      if (!device) {
        answer(own, device.error());
      } else if (!mounted) {
        answer(own, Error(ErrorCode::Io, fmt::format("{}: was moved or unmounted while it was "
                                                     "mounted",
                                                     target.native())));
      } else {
        abort = open_abort(*mounted);
        answer(own, {Outcome::Done, 0}, {}, device->get());
      }
    } else if (request == kUnmount && mounted) {
      const Result<bool> unmounted = unmount_own(target, *mounted);
      if (!unmounted) {
        answer(own, unmounted.error());
      } else {
        answer(own, {*unmounted ? Outcome::Done : Outcome::NotDone, 0}, {}, -1);
      }
    } else if (request == kAbort && mounted) {
      const bool aborted = abort && ::write(abort.get(), "1", 1) == 1;
      answer(own, {aborted ? Outcome::Done : Outcome::NotDone, 0}, {}, -1);
    } else if (request == kIsGone || request == kIsDying) {
      const bool gone = is_gone_thread(thread, request == kIsDying);
      answer(own, {gone ? Outcome::Done : Outcome::NotDone, 0}, {}, -1);
    } else {
      answer(own, Error(ErrorCode::Io, fmt::format("{}: no such request", target.native())));
    }
  }
}

}  // namespace

struct MountKeeper::Request {
  char what = 0;
  pid_t thread = 0;
};

struct MountKeeper::Answer {
  Outcome outcome = Outcome::Failed;
  UniqueFd device;
};

Result<MountKeeper> MountKeeper::start(std::filesystem::path target,
                                       const KernelMountOptions& options) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return system_failure(errno, target.native(), "socketpair");
  }
  UniqueFd ours(ends[0]);
  UniqueFd theirs(ends[1]);
  const FirstThread daemon;
  const pid_t process = ::fork();
  if (process < 0) return system_failure(errno, target.native(), "fork");
  if (process == 0) {
    ours.reset();
    keep(theirs.get(), target, options, daemon);
  }
  daemon.is_this();
  return MountKeeper(std::move(target), process, std::move(ours));
}

MountKeeper MountKeeper::adopt(std::filesystem::path target, UniqueFd device) {
  MountKeeper keeper(std::move(target), -1, UniqueFd());
  keeper.adopted_ = std::move(device);
  return keeper;
}

MountKeeper::MountKeeper(MountKeeper&& other) noexcept
    : target_(std::move(other.target_)),
      process_(std::exchange(other.process_, -1)),
      channel_(std::move(other.channel_)),
      adopted_(std::move(other.adopted_)) {}

MountKeeper::~MountKeeper() {
  channel_.reset();
  if (process_ < 0) return;
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Result<MountKeeper::Answer> MountKeeper::ask(const Request& request) {
  // The threads that ask must not throw.
  return or_out_of_memory([&] { return exchange(request); });
}

Result<MountKeeper::Answer> MountKeeper::exchange(const Request& request) {
  const MutexLock lock(mutex_);
  const auto gone = [&] {
    return fail(ErrorCode::Io, "{}: the process that mounts and unmounts is gone",
                target_.native());
  };
  std::string message(kLongestMessage, '\0');  // allocated first: after the request, the answer
                                               // must be received
  std::array<char, 1 + sizeof(pid_t)> asked{request.what};
  std::memcpy(asked.data() + 1, &request.thread, sizeof request.thread);
  if (::send(channel_.get(), asked.data(), asked.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(asked.size())) {
    return gone();
  }
  Head head;
  std::array<iovec, 2> parts = {iovec{&head, sizeof head}, iovec{message.data(), message.size()}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr packet{};
  packet.msg_iov = parts.data();
  packet.msg_iovlen = parts.size();
  packet.msg_control = control.data();
  packet.msg_controllen = control.size();
  ssize_t got = 0;
  do {
    got = ::recvmsg(channel_.get(), &packet, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < static_cast<ssize_t>(sizeof head)) return gone();
  message.resize(static_cast<std::size_t>(got) - sizeof head);
  Answer answer{.outcome = head.outcome, .device = UniqueFd()};
  const cmsghdr* const header = CMSG_FIRSTHDR(&packet);
  if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    answer.device = UniqueFd(descriptor);
  }
  if (head.outcome == Outcome::Failed) {
    return Failure(Error(ErrorCode::Io, std::move(message), head.error));
  }
  return answer;
}

Result<UniqueFd> MountKeeper::mount() {
  if (is_adopted()) return std::move(adopted_);
  CKFS_TRY(Answer answer, ask({.what = kMount}));
  return std::move(answer.device);
}

Result<bool> MountKeeper::unmount() {
  if (is_adopted()) return false;
  CKFS_TRY(const Answer answer, ask({.what = kUnmount}));
  return answer.outcome == Outcome::Done;
}

Result<bool> MountKeeper::is_gone(pid_t thread, bool dying) {
  if (is_adopted()) return false;
  CKFS_TRY(const Answer answer, ask({.what = dying ? kIsDying : kIsGone, .thread = thread}));
  return answer.outcome == Outcome::Done;
}

Result<bool> MountKeeper::abort() {
  if (is_adopted()) return false;
  CKFS_TRY(const Answer answer, ask({.what = kAbort}));
  return answer.outcome == Outcome::Done;
}

}  // namespace ckfs
