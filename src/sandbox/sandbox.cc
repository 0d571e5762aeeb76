// Capabilities and Landlock by their system calls: libcap would be a dependency for two of them,
// and the headers of older systems do not know the newer rights of Landlock. The filter of system
// calls is libseccomp's, which knows what each machine calls them.
//
// The filter names what is allowed, and answers ENOSYS for everything else: libc can do without the
// newer calls (clone3, say), and a daemon that logs an error is better than one that a forgotten
// call kills. The filter cannot check paths; that is Landlock's part. The kernel does not apply it
// to operations of an io_uring ring either. So no ring can be made here, and existing rings can
// only read (io/uring.h).

#include "sandbox/sandbox.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/io_uring.h>
#include <linux/landlock.h>
#include <linux/sched.h>
#include <memory>
#include <pwd.h>
#include <seccomp.h>
#include <string_view>
#include <sys/mman.h>
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
#if !defined(__x86_64__) && !defined(__aarch64__)
#define CKFS_UNCONFINED 1
#endif

namespace ckfs {
namespace {

namespace stdfs = std::filesystem;

#ifndef CKFS_UNCONFINED

// ---- Landlock

/// All rights that any version of the kernel takes; unknown ones are left out.
struct RulesetRights {
  std::uint64_t files = 0;
  std::uint64_t network = 0;
  std::uint64_t scopes = 0;
};

constexpr std::uint64_t kRead = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
constexpr std::uint64_t kTruncate = 1ULL << 14;       // version 3
constexpr std::uint64_t kControlDevice = 1ULL << 15;  // version 5
/// The rights that apply to a file, not to the entries of a directory.
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

/// 0: the kernel has no Landlock, or it is switched off.
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

/// On every machine; older headers do not know it.
constexpr int kCachestat = 451;

/// What a daemon calls: libc, libfuse, io_uring, and src/io.
constexpr auto kAllowedCalls = std::to_array<int>({
    // Bytes.
    SCMP_SYS(read),
    SCMP_SYS(write),
    SCMP_SYS(readv),
    SCMP_SYS(writev),
    SCMP_SYS(pread64),
    SCMP_SYS(pwrite64),
    SCMP_SYS(preadv),
    SCMP_SYS(pwritev),
    SCMP_SYS(preadv2),
    SCMP_SYS(pwritev2),
    SCMP_SYS(lseek),
    SCMP_SYS(fadvise64),
    SCMP_SYS(readahead),
    SCMP_SYS(ftruncate),
    SCMP_SYS(fallocate),
    SCMP_SYS(fsync),
    SCMP_SYS(fdatasync),
    SCMP_SYS(sync_file_range),
    SCMP_SYS(splice),
    SCMP_SYS(vmsplice),
    SCMP_SYS(io_uring_enter),
    kCachestat,
    // Names: which ones, Landlock says.
    SCMP_SYS(openat),
    SCMP_SYS(openat2),
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
    SCMP_SYS(unlinkat),
    // confine_reading() comes later, and can only take away.
    SCMP_SYS(landlock_create_ruleset),
    SCMP_SYS(landlock_add_rule),
    SCMP_SYS(landlock_restrict_self),
    SCMP_SYS(fcntl),
    SCMP_SYS(dup),
    SCMP_SYS(dup3),
    SCMP_SYS(pipe2),
    SCMP_SYS(eventfd2),
    SCMP_SYS(ppoll),
    // Memory and threads.
    SCMP_SYS(munmap),
    SCMP_SYS(mremap),
    SCMP_SYS(madvise),
    SCMP_SYS(mincore),
    SCMP_SYS(brk),
    SCMP_SYS(mlock),
    SCMP_SYS(munlock),
    SCMP_SYS(membarrier),
    SCMP_SYS(futex),
    SCMP_SYS(set_robust_list),
    SCMP_SYS(get_robust_list),
    SCMP_SYS(rseq),
    SCMP_SYS(set_tid_address),
    SCMP_SYS(sched_yield),
    SCMP_SYS(sched_getaffinity),
    SCMP_SYS(sched_setaffinity),
    SCMP_SYS(getcpu),
    SCMP_SYS(exit),
    SCMP_SYS(exit_group),
    SCMP_SYS(restart_syscall),
    SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask),
    SCMP_SYS(rt_sigreturn),
    SCMP_SYS(rt_sigtimedwait),
    SCMP_SYS(sigaltstack),
    SCMP_SYS(rt_sigpending),
    SCMP_SYS(rt_sigsuspend),
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
    SCMP_SYS(wait4),
    // The system log, and the process that unmounts.
    SCMP_SYS(connect),
    SCMP_SYS(sendto),
    SCMP_SYS(sendmsg),
    SCMP_SYS(recvfrom),
    SCMP_SYS(recvmsg),
    SCMP_SYS(shutdown),
    SCMP_SYS(getsockopt),
    // Which Arm does not have.
    SCMP_SYS(open),
    SCMP_SYS(stat),
    SCMP_SYS(lstat),
    SCMP_SYS(access),
    SCMP_SYS(readlink),
    SCMP_SYS(getdents),
    SCMP_SYS(dup2),
    SCMP_SYS(pipe),
    SCMP_SYS(poll),
    SCMP_SYS(unlink),
    SCMP_SYS(time),
    SCMP_SYS(arch_prctl),
});

/// More for a daemon that answers clients through a socket that listens already.
constexpr auto kAcceptingCalls =
    std::to_array<int>({SCMP_SYS(accept4), SCMP_SYS(setsockopt), SCMP_SYS(getpeername)});

/// A call that is allowed where its arguments are so.
struct Conditional {
  int call;
  std::vector<scmp_arg_cmp> where;
};

scmp_arg_cmp has_bits(unsigned argument, std::uint32_t mask, std::uint32_t bits) {
  return {argument, SCMP_CMP_MASKED_EQ, mask, bits};
}

/// Of arguments that are 32 bits wide to the kernel.
scmp_arg_cmp is(unsigned argument, std::uint32_t value) {
  return has_bits(argument, ~std::uint32_t{0}, value);
}

std::vector<Conditional> conditional_calls() {
  const auto own = static_cast<std::uint32_t>(::getpid());
  constexpr std::uint32_t kSocketType = 15;  // the rest are flags
  return {
      {SCMP_SYS(clone), {has_bits(0, CLONE_THREAD, CLONE_THREAD)}},
      {SCMP_SYS(mmap), {has_bits(2, PROT_EXEC, 0)}},
      {SCMP_SYS(mprotect), {has_bits(2, PROT_EXEC, 0)}},
      // The system log's. Those that take orders (of containers, of systemd) have streams.
      {SCMP_SYS(socket), {is(0, AF_UNIX), has_bits(1, kSocketType, SOCK_DGRAM)}},
      {SCMP_SYS(kill), {is(0, own)}},
      {SCMP_SYS(tgkill), {is(0, own)}},
      {SCMP_SYS(prlimit64), {is(0, 0)}},
      {SCMP_SYS(prlimit64), {is(0, own)}},
      {SCMP_SYS(prctl), {is(0, PR_SET_NAME)}},
      {SCMP_SYS(ioctl), {is(1, FS_IOC_FIEMAP)}},
      // Which files a ring has, no more.
      {SCMP_SYS(io_uring_register), {is(1, IORING_REGISTER_FILES_UPDATE)}},
  };
}

struct FilterCloser {
  void operator()(void* filter) const { ::seccomp_release(filter); }
};

/// False: the kernel has no seccomp. libseccomp returns a negative errno.
Result<bool> filter_calls(Sockets sockets, Renaming renaming) {
  constexpr std::uint32_t kRefuse = SCMP_ACT_ERRNO(ENOSYS);
  const auto failed = [](int result) { return system_failure(-result, "seccomp", "filter"); };
  const std::unique_ptr<void, FilterCloser> filter(::seccomp_init(kRefuse));
  if (!filter) return failed(-ENOMEM);
  int result = 0;
  const auto set = [&](scmp_filter_attr attribute, std::uint32_t value) {
    if (result == 0) result = ::seccomp_attr_set(filter.get(), attribute, value);
  };
  // x32, and what 32-bit programs call.
  set(SCMP_FLTATR_ACT_BADARCH, kRefuse);
  set(SCMP_FLTATR_CTL_NNP, 0);  // as drop_privileges() left it
  set(SCMP_FLTATR_API_SYSRAWRC, 1);
  set(SCMP_FLTATR_CTL_OPTIMIZE, 2);  // few steps for each call
  // A call that this machine does not have is passed over by libseccomp.
  for (const int call : kAllowedCalls) {
    if (result == 0) result = ::seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 0);
  }
  if (renaming == Renaming::Yes) {
    for (const int call : {SCMP_SYS(renameat), SCMP_SYS(renameat2)}) {
      if (result == 0) result = ::seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 0);
    }
  }
  for (const int call : kAcceptingCalls) {
    if (result != 0 || sockets == Sockets::None) break;
    result = ::seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 0);
  }
  for (const Conditional& each : conditional_calls()) {
    if (result != 0) break;
    result = ::seccomp_rule_add_array(filter.get(), SCMP_ACT_ALLOW, each.call,
                                      static_cast<unsigned>(each.where.size()), each.where.data());
  }
  if (result != 0) return failed(result);
  result = ::seccomp_load(filter.get());
  if (result == 0) return true;
  if (result == -ENOSYS || result == -EINVAL) return false;
  return failed(result);
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

Result<Confinement> confine_writing(std::span<const stdfs::path> /*writable*/, Sockets /*sockets*/,
                                    Renaming /*renaming*/) {
  return Confinement{};
}
Result<Confinement> confine_reading(std::span<const stdfs::path> /*readable*/) {
  return Confinement{};
}

#else

Result<Confinement> confine_writing(std::span<const stdfs::path> writable, Sockets sockets,
                                    Renaming renaming) {
  constexpr std::uint64_t kNetwork = 3;  // TCP: bind, connect
  constexpr std::uint64_t kScopes = 3;   // abstract sockets, signals
  std::vector<Allowed> allowed = {{kNull, LANDLOCK_ACCESS_FS_WRITE_FILE}};
  for (const stdfs::path& path : writable) allowed.push_back({path, kSpill});
  Confinement made;
  CKFS_TRY(made.landlock, restrict_files({kWrite, kNetwork, kScopes}, allowed));
  CKFS_TRY(made.seccomp, filter_calls(sockets, renaming));
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
