// Each test tries what is forbidden from inside, in a process of its own: what is given up does not
// come back. What the process finds it writes to a pipe, a line for each thing that was other than
// expected.
#include "sandbox/sandbox.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <linux/io_uring.h>
#include <linux/landlock.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "io/reader.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace stdfs = std::filesystem;

/// What a process says of itself, "" where all was as expected.
std::string in_a_process(const std::function<std::string()>& work) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe(ends.data()), 0);
  const pid_t process = ::fork();
  if (process == 0) {
    const std::string found = work();
    (void)!::write(ends[1], found.data(), found.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string said;
  std::array<char, 4096> piece{};
  for (ssize_t got = 0; (got = ::read(ends[0], piece.data(), piece.size())) > 0;) {
    said.append(piece.data(), static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(process, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  return said;
}

bool can_read(const stdfs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char byte = 0;
  const bool read = ::read(fd, &byte, 1) == 1;
  ::close(fd);
  return read;
}

bool can_open(const stdfs::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

/// The descriptor of a ring of io_uring.
int highest_ring() {
  int highest = -1;
  for (const auto& entry : stdfs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    if (stdfs::read_symlink(entry.path(), gone) == "anon_inode:[io_uring]") {
      highest = std::max(highest, std::stoi(entry.path().filename()));
    }
  }
  return highest;
}

/// Confined, or with nothing at all where this kernel or this build has no part of it.
class Sandbox : public testing::Test {
 protected:
  Sandbox() {
    for (const char* name : {"source", "spill", "elsewhere"}) {
      stdfs::create_directory(top_ / name);
      std::ofstream(top_ / name / "file") << "bytes";
    }
  }

  static std::string confine(const std::vector<stdfs::path>& writable, Confinement& made,
                             Sockets sockets = Sockets::None) {
    if (const auto dropped = drop_privileges(); !dropped) return dropped.error().message();
    const auto confined = confine_writing(writable, sockets);
    if (!confined) return confined.error().message();
    made = *confined;
    return {};
  }

  const TemporaryDirectory directory_;
  const stdfs::path top_ = directory_.path();
};

TEST_F(Sandbox, WritesNowhereButInTheDirectoryForIt) {
  const std::string said = in_a_process([&] {
    Confinement made;
    std::string found = confine({top_ / "spill"}, made);
    const auto expect = [&](bool holds, const char* what) {
      if (!holds) found += std::string(what) + "\n";
    };
    const bool forbidden = made.landlock;
    const stdfs::path there = top_ / "elsewhere";
    expect(can_open(there / "file", O_WRONLY) != forbidden, "opened to write");
    expect(can_open(there / "file", O_RDWR) != forbidden, "opened to read and write");
    expect(can_open(there / "new", O_WRONLY | O_CREAT) != forbidden, "made");
    expect((::mkdir((there / "folder").c_str(), 0700) == 0) != (made.landlock || made.seccomp),
           "a directory made");
    expect((::symlink("x", (there / "link").c_str()) == 0) != (made.landlock || made.seccomp),
           "a link made");
    expect((::chmod((there / "file").c_str(), 0640) == 0) != made.seccomp, "its mode changed");
    expect((::rename((there / "file").c_str(), (there / "b").c_str()) == 0) !=
               (made.landlock || made.seccomp),
           "renamed");
    expect(can_open("/dev/null", O_RDWR), "no /dev/null");

    expect(can_read(top_ / "source/file"), "not read");
    expect(can_open(top_ / "spill/new", O_RDWR | O_CREAT | O_EXCL), "not spilled");
    expect(::unlink((top_ / "spill/new").c_str()) == 0, "spill not removed");
    expect(can_open(top_ / "spill", O_RDWR | O_TMPFILE), "no nameless spill");
    return found;
  });
  EXPECT_EQ(said, "");
}

TEST_F(Sandbox, StartsNoProgramAndReachesNoNetwork) {
  const std::string said = in_a_process([&] {
    Confinement made;
    std::string found = confine({}, made);
    const auto expect = [&](bool holds, const char* what) {
      if (!holds) found += std::string(what) + "\n";
    };
    if (made.seccomp) {
      expect(::fork() < 0 && errno == ENOSYS, "a process");
      std::array<char*, 2> words = {const_cast<char*>("true"), nullptr};
      expect(::execv("/bin/true", words.data()) < 0 && errno == ENOSYS, "a program");
      expect(::socket(AF_INET, SOCK_STREAM, 0) < 0 && errno == ENOSYS, "TCP");
      expect(::socket(AF_INET6, SOCK_DGRAM, 0) < 0 && errno == ENOSYS, "UDP");
      expect(::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) < 0 && errno == ENOSYS, "ptrace");
      expect(::kill(::getppid(), 0) < 0 && errno == ENOSYS, "a signal to others");
      expect(::mount("none", "/mnt", "tmpfs", 0, nullptr) < 0 && errno == ENOSYS, "a mount");
      expect(::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
                 MAP_FAILED,
             "code that is made");
      expect(::setuid(0) < 0, "a user");
      expect(::socket(AF_UNIX, SOCK_STREAM, 0) < 0 && errno == ENOSYS, "a stream of another's");
      rlimit limit{};
      expect(::prlimit(::getppid(), RLIMIT_NOFILE, nullptr, &limit) < 0 && errno == ENOSYS,
             "limits of another process");
    }
    // What a daemon needs goes on.
    int made_by_a_thread = 0;
    std::thread([&] { made_by_a_thread = 1; }).join();
    expect(made_by_a_thread == 1, "no thread");
    rlimit limit{};
    expect(::getrlimit(RLIMIT_NOFILE, &limit) == 0, "no limits of its own");
    expect(::prlimit(::getpid(), RLIMIT_NOFILE, &limit, nullptr) == 0, "no limits by its number");
    const int local = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    expect(local >= 0, "no local socket");
    expect(::kill(::getpid(), 0) == 0, "no signal to itself");
    expect(std::string(4 << 20, 'x').size() == 4 << 20, "no memory");
    return found;
  });
  EXPECT_EQ(said, "");
}

TEST_F(Sandbox, TakesClientsAndReachesNoServer) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const auto generic = [&] { return reinterpret_cast<sockaddr*>(&address); };
  ASSERT_EQ(::bind(listener, generic(), size), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ASSERT_EQ(::getsockname(listener, generic(), &size), 0);
  const int client = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int unused = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::connect(client, generic(), size), 0);
  const std::string said = in_a_process([&] {
    Confinement made;
    std::string found = confine({}, made, Sockets::Accepted);
    const auto expect = [&](bool holds, const char* what) {
      if (!holds) found += std::string(what) + "\n";
    };
    const int taken = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    const int one = 1;
    expect(taken >= 0, "no client");
    expect(::setsockopt(taken, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one) == 0, "no option");
    expect(::send(taken, "x", 1, MSG_NOSIGNAL) == 1, "no answer");
    if (made.seccomp) {
      expect(::socket(AF_INET, SOCK_STREAM, 0) < 0 && errno == ENOSYS, "TCP");
      expect(::bind(unused, generic(), size) < 0 && errno == ENOSYS, "another address");
      expect(::listen(unused, 1) < 0 && errno == ENOSYS, "another socket that listens");
    }
    // Also by a socket that was open before: connect(2) itself is allowed for the system log.
    const bool connected = ::connect(unused, generic(), size) == 0;
    const int version = static_cast<int>(
        ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION));
    expect(!(connected && made.landlock && version >= 4), "a server");
    return found;
  });
  EXPECT_EQ(said, "");
  for (const int each : {listener, client, unused}) ::close(each);
}

/// What no daemon calls, and no program that has taken one over may.
constexpr auto kRefusedCalls = std::to_array<long>({
    // Programs and processes.
    SYS_execve,
    SYS_execveat,
    SYS_clone3,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_open,
    SYS_pidfd_send_signal,
    SYS_kcmp,
    SYS_tkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_setpriority,
    SYS_setrlimit,
    SYS_sched_setscheduler,
    SYS_personality,
    SYS_seccomp,
    SYS_unshare,
    SYS_setns,
    SYS_memfd_create,
    SYS_userfaultfd,
    SYS_pkey_mprotect,
    // Users.
    SYS_setuid,
    SYS_setgid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setgroups,
    SYS_setfsuid,
    SYS_capset,
    // Files: their owners, modes, attributes and names.
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_fsetxattr,
    SYS_removexattr,
    SYS_fremovexattr,
    SYS_renameat,
    SYS_renameat2,
    SYS_linkat,
    SYS_symlinkat,
    SYS_mkdirat,
    SYS_mknodat,
    SYS_truncate,
    SYS_utimensat,
    SYS_open_by_handle_at,
    SYS_copy_file_range,
    // The network and other processes' sockets.
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_socketpair,
    SYS_setsockopt,
    SYS_sendmmsg,
    // The system.
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_keyctl,
    SYS_add_key,
    SYS_init_module,
    SYS_finit_module,
    SYS_reboot,
    SYS_sethostname,
    SYS_syslog,
    // Rings of io_uring.
    SYS_io_uring_setup,
});

TEST_F(Sandbox, RefusesEachCallThatItDoesNotName) {
  const std::string said = in_a_process([&] {
    Confinement made;
    std::string found = confine({}, made);
    if (!made.seccomp) return found;
    for (const long call : kRefusedCalls) {
      if (::syscall(call, -1, -1, -1, -1, -1, -1) >= 0 || errno != ENOSYS) {
        found += "call " + std::to_string(call) + "\n";
      }
    }
    return found;
  });
  EXPECT_EQ(said, "");
}

TEST_F(Sandbox, RenamesInItsOwnDirectoryAndNowhereElseWhereThatIsSaid) {
  const std::string said = in_a_process([&] {
    const std::filesystem::path own = top_ / "own";
    std::filesystem::create_directory(own);
    std::ofstream(own / "new") << "text";
    const std::vector<std::filesystem::path> writable = {own};
    if (const auto dropped = drop_privileges(); !dropped) return dropped.error().message();
    const auto confined = confine_writing(writable, Sockets::None, Renaming::Yes);
    if (!confined) return confined.error().message();
    std::string found;
    if (::renameat(AT_FDCWD, (own / "new").c_str(), AT_FDCWD, (own / "old").c_str()) != 0) {
      found += "not renamed\n";
    }
    const std::filesystem::path file = top_ / "source/file";
    if (confined->landlock &&
        (::renameat(AT_FDCWD, file.c_str(), AT_FDCWD, (top_ / "source/other").c_str()) == 0 ||
         ::renameat(AT_FDCWD, (own / "old").c_str(), AT_FDCWD, file.c_str()) == 0)) {
      found += "renamed elsewhere\n";
    }
    return found;
  });
  EXPECT_EQ(said, "");
}

TEST_F(Sandbox, MakesNoRingAndReadsByThoseThatThereAre) {
  const std::string said = in_a_process([&] {
    auto reader = make_uring_reader(4, {}, 2);
    const int file = ::open((top_ / "source/file").c_str(), O_RDONLY | O_CLOEXEC);
    const int ring = highest_ring();
    Confinement made;
    std::string found = confine({}, made);
    const auto expect = [&](bool holds, const char* what) {
      if (!holds) found += std::string(what) + "\n";
    };
    if (!reader) return found + reader.error().message();
    if (made.seccomp) {
      const auto registers = [&](unsigned operation, const void* what) {
        return ::syscall(SYS_io_uring_register, ring, operation, what, 1);
      };
      for (unsigned operation = 0; operation < 256; ++operation) {
        if (operation == IORING_REGISTER_FILES_UPDATE) continue;
        expect(registers(operation, nullptr) < 0 && errno == ENOSYS, "registered otherwise");
      }
      const io_uring_files_update update{
          .offset = 0, .resv = 0, .fds = reinterpret_cast<std::uintptr_t>(&file)};
      expect(registers(IORING_REGISTER_FILES_UPDATE, &update) == 1, "no file registered");
    }
    std::array<char, 4> bytes{};
    std::array<iovec, 2> parts = {iovec{bytes.data(), 2}, iovec{&bytes[2], 2}};
    std::vector<Access> accesses(2);
    for (std::size_t i = 0; i < 2; ++i) {
      accesses[i] = {.fd = file,
                     .serial = 1,
                     .offset = 2 * i,
                     .size = 2,
                     .parts = std::span(parts).subspan(i, 1)};
    }
    expect((*reader)->read(accesses).has_value(), "not read");
    expect(std::string_view(bytes.data(), 4) == "byte", "other bytes");
    return found;
  });
  EXPECT_EQ(said, "");
}

TEST_F(Sandbox, ReadsNothingButTheSource) {
  const std::string said = in_a_process([&] {
    const int open_before = ::open((top_ / "elsewhere/file").c_str(), O_RDONLY | O_CLOEXEC);
    Confinement made;
    std::string found = confine({}, made);
    const auto expect = [&](bool holds, const char* what) {
      if (!holds) found += std::string(what) + "\n";
    };
    const auto confined = confine_reading(std::vector<stdfs::path>{top_ / "source"});
    if (!confined) return found + confined.error().message();
    expect(confined->landlock == made.landlock, "what confines writing does not confine reading");
    expect(can_read(top_ / "source/file"), "the source is not read");
    expect(can_read(top_ / "elsewhere/file") != confined->landlock, "another file");
    expect(can_read("/proc/self/environ") != confined->landlock, "the environment");
    bool by_a_thread = false;
    std::thread([&] { by_a_thread = can_read(top_ / "elsewhere/file"); }).join();
    expect(by_a_thread != confined->landlock, "another file by a thread");
    char byte = 0;
    expect(::read(open_before, &byte, 1) == 1, "what was open");
    std::ofstream(top_ / "source/other") << "x";
    expect(made.landlock != can_read(top_ / "source/other"), "written where it reads");
    return found;
  });
  EXPECT_EQ(said, "");
}

TEST_F(Sandbox, CoversFewFilesByThemselvesAndManyByTheirDirectory) {
  const stdfs::path a = top_ / "source/file";
  const stdfs::path b = top_ / "elsewhere/file";
  EXPECT_EQ(paths_covering({a, b}), (std::vector<stdfs::path>{a, b}));
  std::vector<stdfs::path> many(100, a);
  for (std::size_t i = 0; i < many.size(); ++i) {
    many[i] = top_ / "source" / std::to_string(i % 10) / std::to_string(i);
  }
  many.push_back(a);
  EXPECT_EQ(paths_covering(many), (std::vector<stdfs::path>{top_ / "source"}));
}

}  // namespace
}  // namespace ckfs
