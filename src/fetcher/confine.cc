// A list of allowed calls, as the daemon's own is (sandbox/sandbox.cc), and ENOSYS for the rest. It
// is wider by what names take to be looked up (libc loads modules for that, which speak to local
// services) and by sockets of the internet, and narrower by everything that writes.

#include "fetcher/confine.h"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <linux/sched.h>
#include <memory>
#include <seccomp.h>
#include <string_view>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CKFS_FETCHER_UNCONFINED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CKFS_FETCHER_UNCONFINED 1
#endif

namespace ckfs {

#ifdef CKFS_FETCHER_UNCONFINED

Result<bool> confine_fetcher() {
  return false;
}

#else

namespace {

constexpr auto kFetcherCalls = std::to_array<int>({
    // Bytes.
    SCMP_SYS(read),
    SCMP_SYS(write),
    SCMP_SYS(readv),
    SCMP_SYS(writev),
    SCMP_SYS(pread64),
    SCMP_SYS(lseek),
    SCMP_SYS(close),
    SCMP_SYS(close_range),
    SCMP_SYS(fstat),
    SCMP_SYS(newfstatat),
    SCMP_SYS(statx),
    SCMP_SYS(statfs),
    SCMP_SYS(fstatfs),
    SCMP_SYS(readlinkat),
    SCMP_SYS(getdents64),
    SCMP_SYS(faccessat),
    SCMP_SYS(faccessat2),
    SCMP_SYS(getcwd),
    SCMP_SYS(fcntl),
    SCMP_SYS(dup),
    SCMP_SYS(dup3),
    SCMP_SYS(pipe2),
    SCMP_SYS(eventfd2),
    SCMP_SYS(ppoll),
    SCMP_SYS(pselect6),
    SCMP_SYS(epoll_create1),
    SCMP_SYS(epoll_ctl),
    SCMP_SYS(epoll_pwait),
    // Servers, and local services that look names up.
    SCMP_SYS(connect),
    SCMP_SYS(bind),
    SCMP_SYS(sendto),
    SCMP_SYS(sendmsg),
    SCMP_SYS(sendmmsg),
    SCMP_SYS(recvfrom),
    SCMP_SYS(recvmsg),
    SCMP_SYS(recvmmsg),
    SCMP_SYS(shutdown),
    SCMP_SYS(getsockopt),
    SCMP_SYS(setsockopt),
    SCMP_SYS(getsockname),
    SCMP_SYS(getpeername),
    // Memory and threads.
    SCMP_SYS(munmap),
    SCMP_SYS(mremap),
    SCMP_SYS(madvise),
    SCMP_SYS(brk),
    SCMP_SYS(membarrier),
    SCMP_SYS(futex),
    SCMP_SYS(set_robust_list),
    SCMP_SYS(get_robust_list),
    SCMP_SYS(rseq),
    SCMP_SYS(set_tid_address),
    SCMP_SYS(sched_yield),
    SCMP_SYS(sched_getaffinity),
    SCMP_SYS(getcpu),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(sigaltstack),
    // Identity, time, resources.
    SCMP_SYS(getpid),
    SCMP_SYS(getppid),
    SCMP_SYS(gettid),
    SCMP_SYS(getuid),
    SCMP_SYS(geteuid),
    SCMP_SYS(getgid),
    SCMP_SYS(getegid),
    SCMP_SYS(clock_gettime),
    SCMP_SYS(clock_getres),
    SCMP_SYS(clock_nanosleep),
    SCMP_SYS(nanosleep),
    SCMP_SYS(gettimeofday),
    SCMP_SYS(getrandom),
    SCMP_SYS(uname),
    SCMP_SYS(sysinfo),
    SCMP_SYS(getrlimit),
    SCMP_SYS(getrusage),
    // Which Arm does not have.
    SCMP_SYS(stat),
    SCMP_SYS(lstat),
    SCMP_SYS(access),
    SCMP_SYS(readlink),
    SCMP_SYS(getdents),
    SCMP_SYS(dup2),
    SCMP_SYS(pipe),
    SCMP_SYS(poll),
    SCMP_SYS(select),
    SCMP_SYS(epoll_wait),
    SCMP_SYS(time),
});

struct FreesFilter {
  void operator()(void* filter) const { ::seccomp_release(filter); }
};

/// Calls that are allowed with some arguments only.
struct FetcherRule {
  int call;
  std::vector<scmp_arg_cmp> where;
};

std::vector<FetcherRule> fetcher_rules() {
  constexpr std::uint64_t kWriting = O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND | O_TMPFILE;
  constexpr std::uint64_t kReading = O_TMPFILE & O_DIRECTORY;  // O_TMPFILE has it as a part
  const auto masked = [](unsigned argument, std::uint64_t mask, std::uint64_t value) {
    return scmp_arg_cmp{argument, SCMP_CMP_MASKED_EQ, mask, value};
  };
  // Arguments are ints: the upper half of the register may hold anything.
  const auto equal = [&](unsigned argument, std::uint64_t value) {
    return masked(argument, 0xFFFFFFFF, value);
  };
  std::vector<FetcherRule> rules = {
      {SCMP_SYS(openat), {masked(2, kWriting & ~kReading, O_RDONLY)}},
      {SCMP_SYS(open), {masked(1, kWriting & ~kReading, O_RDONLY)}},
      // A thread, and no process.
      {SCMP_SYS(clone), {masked(0, CLONE_THREAD | CLONE_VM, CLONE_THREAD | CLONE_VM)}},
      // abort(): a signal to itself, and to no other process of its user.
      {SCMP_SYS(tgkill), {equal(0, static_cast<std::uint64_t>(::getpid()))}},
      {SCMP_SYS(ioctl), {equal(1, FIONREAD)}},
      {SCMP_SYS(ioctl), {equal(1, FIONBIO)}},
      {SCMP_SYS(prctl), {equal(0, PR_SET_NAME)}},
      // No memory becomes code, but that of files: libc loads modules that look names up.
      {SCMP_SYS(mmap), {masked(2, PROT_EXEC, 0)}},
      {SCMP_SYS(mmap), {masked(2, PROT_EXEC | PROT_WRITE, PROT_EXEC), masked(3, MAP_ANONYMOUS, 0)}},
      {SCMP_SYS(mprotect), {masked(2, PROT_EXEC, 0)}},
      {SCMP_SYS(socketpair), {equal(0, AF_UNIX)}},
  };
  for (const int family : {AF_INET, AF_INET6, AF_UNIX, AF_NETLINK}) {
    rules.push_back({SCMP_SYS(socket), {equal(0, static_cast<std::uint64_t>(family))}});
  }
  return rules;
}

}  // namespace

Result<bool> confine_fetcher() {
  const auto failed = [](int error) { return system_failure(-error, "fetcher", "seccomp"); };
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    return system_failure(errno, "fetcher", "PR_SET_NO_NEW_PRIVS");
  }
  const std::unique_ptr<void, FreesFilter> filter(::seccomp_init(SCMP_ACT_ERRNO(ENOSYS)));
  if (!filter) return failed(-ENOMEM);
  // Errors of the kernel as they are: without it every one is ECANCELED.
  int result = ::seccomp_attr_set(filter.get(), SCMP_FLTATR_API_SYSRAWRC, 1);
  for (const int call : kFetcherCalls) {
    if (result == 0) result = ::seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 0);
  }
  for (const FetcherRule& rule : fetcher_rules()) {
    if (result != 0) break;
    result = ::seccomp_rule_add_array(filter.get(), SCMP_ACT_ALLOW, rule.call,
                                      static_cast<unsigned>(rule.where.size()), rule.where.data());
  }
  if (result != 0) return failed(result);
  result = ::seccomp_load(filter.get());
  if (result == 0) return true;
  if (result == -ENOSYS || result == -EINVAL) return false;
  return failed(result);
}

#endif

}  // namespace ckfs
