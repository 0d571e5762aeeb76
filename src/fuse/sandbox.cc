// The system calls by hand: libcap and libseccomp would be dependencies for five of them, and the
// headers of older systems do not know the newer rights of Landlock.
//
// The filter names what is allowed, and answers ENOSYS for everything else: libc has a way without
// for whatever is newer than it must be (clone3, say), and a daemon that would be killed by a call
// that somebody forgot here is worth less than one that logs an error. Nothing can be said of paths
// there; that is Landlock's part.

#include "fuse/sandbox.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/fiemap.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/landlock.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <pwd.h>
#include <string_view>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/paths.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "io/file_system.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CKFS_UNCONFINED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CKFS_UNCONFINED 1
#endif
#if defined(__x86_64__)
#define CKFS_AUDIT_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define CKFS_AUDIT_ARCH AUDIT_ARCH_AARCH64
#else
#define CKFS_UNCONFINED 1
#endif

namespace ckfs {
namespace {

namespace stdfs = std::filesystem;

#ifndef CKFS_UNCONFINED

// ---- Landlock

/// All that any version of the kernel takes; what it does not know is left away.
struct RulesetRights {
  std::uint64_t files = 0;
  std::uint64_t network = 0;
  std::uint64_t scopes = 0;
};

constexpr std::uint64_t kRead = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
constexpr std::uint64_t kTruncate = 1ULL << 14;       // version 3
constexpr std::uint64_t kControlDevice = 1ULL << 15;  // version 5
/// Of those that may be asked of a file, not of what is in a directory.
constexpr std::uint64_t kOfFiles = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE |
                                   LANDLOCK_ACCESS_FS_READ_FILE | kTruncate | kControlDevice;
constexpr std::uint64_t kWrite =
    LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
    LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR |
    LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |
    LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM | LANDLOCK_ACCESS_FS_REFER |
    kTruncate | kControlDevice;
/// What a directory for temporary files needs.
constexpr std::uint64_t kSpill = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE |
                                 LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_REMOVE_FILE |
                                 kTruncate;

/// 0: the kernel has none, or it is switched off.
int landlock_version() {
  const long version =
      ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  return version < 0 ? 0 : static_cast<int>(version);
}

/// The rights of a kernel of that version.
RulesetRights known_to(int version, RulesetRights rights) {
  if (version < 2) rights.files &= ~std::uint64_t{LANDLOCK_ACCESS_FS_REFER};
  if (version < 3) rights.files &= ~kTruncate;
  if (version < 4) rights.network = 0;
  if (version < 5) rights.files &= ~kControlDevice;
  if (version < 6) rights.scopes = 0;
  return rights;
}

constexpr std::string_view kNull = "/dev/null";

struct Allowed {
  stdfs::path path;
  std::uint64_t rights = 0;
};

/// False: the kernel has no Landlock.
Result<bool> restrict_files(const RulesetRights& wanted, std::span<const Allowed> allowed) {
  const int version = landlock_version();
  if (version == 0) return false;
  const RulesetRights handled = known_to(version, wanted);
  UniqueFd ruleset(static_cast<int>(::syscall(SYS_landlock_create_ruleset, &handled,
                                              version < 4   ? sizeof handled.files
                                              : version < 6 ? 2 * sizeof handled.files
                                                            : sizeof handled,
                                              0)));
  if (!ruleset) return system_failure(errno, "Landlock", "a set of rules");
  for (const Allowed& each : allowed) {
    const UniqueFd place(::open(each.path.c_str(), O_PATH | O_CLOEXEC));
    if (!place && errno == ENOENT && each.path == kNull) continue;  // a machine without devices
    struct stat status{};
    if (!place || ::fstat(place.get(), &status) != 0) {
      return system_failure(errno, each.path.native(), "Landlock: a rule");
    }
    landlock_path_beneath_attr rule{};
    rule.parent_fd = place.get();
    rule.allowed_access =
        each.rights & handled.files & (S_ISDIR(status.st_mode) ? ~std::uint64_t{0} : kOfFiles);
    if (::syscall(SYS_landlock_add_rule, ruleset.get(), LANDLOCK_RULE_PATH_BENEATH, &rule, 0) !=
        0) {
      return system_failure(errno, each.path.native(), "Landlock: a rule");
    }
  }
  if (::syscall(SYS_landlock_restrict_self, ruleset.get(), 0) != 0) {
    return system_failure(errno, "Landlock", "restriction");
  }
  return true;
}

// ---- seccomp

/// What a daemon calls: libc, libfuse, io_uring, and src/io.
constexpr auto kAllowedCalls = std::to_array<int>({
    // Bytes.
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_preadv,
    SYS_pwritev,
    SYS_preadv2,
    SYS_pwritev2,
    SYS_lseek,
    SYS_fadvise64,
    SYS_readahead,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_fsync,
    SYS_fdatasync,
    SYS_sync_file_range,
    SYS_splice,
    SYS_vmsplice,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    451 /* cachestat */,
    // Names: which ones, Landlock says.
    SYS_openat,
    SYS_openat2,
    SYS_close,
    SYS_close_range,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_statfs,
    SYS_fstatfs,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_getcwd,
    SYS_unlinkat,
    // confine_reading() comes later, and can only take away.
    SYS_landlock_create_ruleset,
    SYS_landlock_add_rule,
    SYS_landlock_restrict_self,
    SYS_fcntl,
    SYS_dup,
    SYS_dup3,
    SYS_pipe2,
    SYS_eventfd2,
    SYS_ppoll,
    // Memory and threads.
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_mincore,
    SYS_brk,
    SYS_mlock,
    SYS_munlock,
    SYS_membarrier,
    SYS_futex,
    SYS_set_robust_list,
    SYS_get_robust_list,
    SYS_rseq,
    SYS_set_tid_address,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_sched_setaffinity,
    SYS_getcpu,
    SYS_exit,
    SYS_exit_group,
    SYS_restart_syscall,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigtimedwait,
    SYS_sigaltstack,
    SYS_rt_sigpending,
    SYS_rt_sigsuspend,
    // Who, when, how much.
    SYS_getpid,
    SYS_getppid,
    SYS_gettid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_gettimeofday,
    SYS_getrandom,
    SYS_uname,
    SYS_sysinfo,
    SYS_getrlimit,
    SYS_prlimit64,
    SYS_getrusage,
    SYS_wait4,
    // The system log, and the process that unmounts.
    SYS_connect,
    SYS_sendto,
    SYS_sendmsg,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_shutdown,
    SYS_getsockopt,
#ifdef __x86_64__
    SYS_open,
    SYS_stat,
    SYS_lstat,
    SYS_access,
    SYS_readlink,
    SYS_getdents,
    SYS_dup2,
    SYS_pipe,
    SYS_poll,
    SYS_unlink,
    SYS_time,
    SYS_arch_prctl,
#endif
});

/// A call that is allowed with some values of one argument.
struct Conditional {
  enum class Test : std::uint8_t { Equals, AllSet, NoneSet };
  int call;
  std::uint8_t argument;
  Test test;
  std::uint32_t value;
};

constexpr std::uint32_t offset_of_argument(std::uint8_t number) {
  return static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 8 * std::size_t{number});
}

std::vector<sock_filter> make_filter() {
  using Test = Conditional::Test;
  const auto own = static_cast<std::uint32_t>(::getpid());
  const auto conditional = std::to_array<Conditional>({
      {SYS_clone, 0, Test::AllSet, CLONE_THREAD},
      {SYS_mmap, 2, Test::NoneSet, 4 /* PROT_EXEC */},
      {SYS_mprotect, 2, Test::NoneSet, 4},
      {SYS_socket, 0, Test::Equals, AF_UNIX},
      {SYS_kill, 0, Test::Equals, own},
      {SYS_tgkill, 0, Test::Equals, own},
      {SYS_prctl, 0, Test::Equals, PR_SET_NAME},
      {SYS_ioctl, 1, Test::Equals, static_cast<std::uint32_t>(FS_IOC_FIEMAP)},
  });
  constexpr std::uint32_t kAllow = SECCOMP_RET_ALLOW;
  constexpr std::uint32_t kRefuse = SECCOMP_RET_ERRNO | ENOSYS;
  std::vector<sock_filter> filter;
  const auto load = [&](std::size_t offset) {
    filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)));
  };
  const auto jump = [&](std::uint16_t test, std::uint32_t value, std::uint8_t yes,
                        std::uint8_t no) {
    filter.push_back(BPF_JUMP(static_cast<std::uint16_t>(BPF_JMP | test | BPF_K), value, yes, no));
  };
  const auto give = [&](std::uint32_t answer) {
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, answer));
  };

  load(offsetof(seccomp_data, arch));
  jump(BPF_JEQ, CKFS_AUDIT_ARCH, 1, 0);
  give(kRefuse);
  load(offsetof(seccomp_data, nr));  // x32's numbers have bit 30, and equal none of these
  for (const int call : kAllowedCalls) {
    jump(BPF_JEQ, static_cast<std::uint32_t>(call), 0, 1);
    give(kAllow);
  }
  for (const Conditional& each : conditional) {
    jump(BPF_JEQ, static_cast<std::uint32_t>(each.call), 0, 4);
    load(offset_of_argument(each.argument));  // its low half, which is all that these have
    switch (each.test) {
      case Test::Equals:
        jump(BPF_JEQ, each.value, 0, 1);
        break;
      case Test::AllSet:
        jump(BPF_JSET, each.value, 0, 1);
        break;
      case Test::NoneSet:
        jump(BPF_JSET, each.value, 1, 0);
        break;
    }
    give(kAllow);
    give(kRefuse);
  }
  give(kRefuse);
  return filter;
}

/// False: the kernel has none.
Result<bool> filter_calls() {
  std::vector<sock_filter> filter = make_filter();
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0) return true;
  if (errno == ENOSYS || errno == EINVAL) return false;
  return system_failure(errno, "seccomp", "filter");
}

#endif

bool is_far_away(const stdfs::path& directory) {
  struct statfs status{};
  return ::statfs(directory.c_str(), &status) == 0 && traits_of(std::int64_t{status.f_type}).remote;
}

stdfs::path top_of_file_system(stdfs::path directory) {
  struct stat here{}, above{};
  while (directory.has_relative_path() && ::stat(directory.c_str(), &here) == 0 &&
         ::stat(directory.parent_path().c_str(), &above) == 0 && here.st_dev == above.st_dev) {
    directory = directory.parent_path();
  }
  return directory;
}

}  // namespace

Result<DaemonUser> find_user(const std::string& name) {
  const passwd* const found = ::getpwnam(name.c_str());
  if (found == nullptr) {
    return fail(ErrorCode::InvalidArgument, "setuid: no user {}", quote(name));
  }
  return DaemonUser{name, found->pw_uid, found->pw_gid};
}

Result<void> become(const DaemonUser& user) {
  if (::initgroups(user.name.c_str(), user.group) != 0 ||
      ::setresgid(user.group, user.group, user.group) != 0 ||
      ::setresuid(user.user, user.user, user.user) != 0) {
    return system_failure(errno, user.name, "setuid");
  }
  return {};
}

Result<void> drop_privileges() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
  if (::syscall(SYS_capget, &header, sets.data()) != 0) {
    return system_failure(errno, "capabilities", "capget");
  }
  constexpr std::array<std::uint32_t, _LINUX_CAPABILITY_U32S_3> kKept = {1U << CAP_DAC_READ_SEARCH,
                                                                         0};
  for (std::size_t i = 0; i < sets.size(); ++i) {
    sets[i].permitted &= kKept[i];
    sets[i].effective &= kKept[i];
    sets[i].inheritable = 0;
  }
  if (::syscall(SYS_capset, &header, sets.data()) != 0) {
    return system_failure(errno, "capabilities", "capset");
  }
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    return system_failure(errno, "capabilities", "PR_SET_NO_NEW_PRIVS");
  }
  return {};
}

std::vector<stdfs::path> paths_covering(std::vector<stdfs::path> files) {
  constexpr std::size_t kFew = 64;
  std::vector<stdfs::path> directories;
  for (const stdfs::path& file : files) {
    if (directories.empty() || directories.back() != file.parent_path()) {
      directories.push_back(file.parent_path());
    }
  }
  std::ranges::sort(directories);
  std::vector<stdfs::path> covering;
  const auto is_covered = [&](const stdfs::path& path) {
    return std::ranges::any_of(covering, [&](const auto& by) { return lies_within(path, by); });
  };
  for (const stdfs::path& directory : directories) {
    if (covering.empty() || !lies_within(directory, covering.back())) {
      if (is_far_away(directory)) {
        covering.push_back(top_of_file_system(directory));
      } else if (files.size() > kFew) {
        covering.push_back(directory);
      }
    }
  }
  if (files.size() <= kFew) {
    for (stdfs::path& file : files) {
      if (!is_covered(file)) covering.push_back(std::move(file));
    }
  }
  return covering;
}

#ifdef CKFS_UNCONFINED

Result<Confinement> confine_writing(std::span<const stdfs::path> /*writable*/) {
  return Confinement{};
}
Result<Confinement> confine_reading(std::span<const stdfs::path> /*readable*/) {
  return Confinement{};
}

#else

Result<Confinement> confine_writing(std::span<const stdfs::path> writable) {
  constexpr std::uint64_t kNetwork = 3;  // TCP: bind, connect
  constexpr std::uint64_t kScopes = 3;   // abstract sockets, signals
  std::vector<Allowed> allowed = {{kNull, LANDLOCK_ACCESS_FS_WRITE_FILE}};
  for (const stdfs::path& path : writable) allowed.push_back({path, kSpill});
  Confinement made;
  CKFS_TRY(made.landlock, restrict_files({kWrite, kNetwork, kScopes}, allowed));
  CKFS_TRY(made.seccomp, filter_calls());
  return made;
}

Result<Confinement> confine_reading(std::span<const stdfs::path> readable) {
  std::vector<Allowed> allowed = {{kNull, kRead}};
  for (const stdfs::path& path : readable) allowed.push_back({path, kRead});
  Confinement made;
  CKFS_TRY(made.landlock, restrict_files({kRead, 0, 0}, allowed));
  return made;
}

#endif

}  // namespace ckfs
