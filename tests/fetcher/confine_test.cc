#include "fetcher/confine.h"

#include <cerrno>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace ckfs {
namespace {

/// Runs `look` in a confined process; its result is the number of the first thing that is not so.
template <typename Look>
int confined(const Look& look) {
  const pid_t process = ::fork();
  if (process == 0) {
    const auto made = confine_fetcher();
    if (!made) ::_exit(100);
    if (!*made) ::_exit(0);  // a kernel without a filter, or a sanitizer
    ::_exit(look());
  }
  int status = 0;
  ::waitpid(process, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 200;
}

bool is_refused(long result) {
  return result < 0 && errno == ENOSYS;
}

TEST(FetcherConfinement, StartsNothingAndWritesNoFile) {
  EXPECT_EQ(confined([] {
              char* const arguments[] = {nullptr};
              if (!is_refused(::execve("/bin/true", arguments, arguments))) return 1;
              if (!is_refused(::fork())) return 2;
              if (!is_refused(::open("/tmp/ckfs-fetcher-test", O_WRONLY | O_CREAT, 0600))) return 3;
              if (!is_refused(::open("/tmp", O_TMPFILE | O_RDWR, 0600))) return 4;
              if (!is_refused(::unlink("/tmp/ckfs-fetcher-test"))) return 5;
              if (!is_refused(::kill(::getppid(), 0))) return 6;
              if (!is_refused(::socket(AF_PACKET, SOCK_RAW, 0))) return 7;
              if (::mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) {
                return 8;
              }
              const long parent = ::getppid();
              if (!is_refused(::syscall(SYS_tgkill, parent, parent, 0))) return 9;
              if (::syscall(SYS_tgkill, ::getpid(), ::gettid(), 0) != 0) return 10;  // abort()
              return 0;
            }),
            0);
}

TEST(FetcherConfinement, LooksUpNamesAndReachesServersByThreads) {
  EXPECT_EQ(confined([] {
              if (::socket(AF_INET, SOCK_STREAM, 0) < 0) return 1;
              if (::socket(AF_INET6, SOCK_STREAM, 0) < 0 && errno == ENOSYS) return 2;
              if (::open("/etc/hosts", O_RDONLY | O_CLOEXEC) < 0 && errno == ENOSYS) return 3;
              int result = 4;
              std::thread([&] {
                addrinfo* found = nullptr;
                result = ::getaddrinfo("localhost", "80", nullptr, &found) == 0 ? 0 : 5;
              }).join();
              return result;
            }),
            0);
}

}  // namespace
}  // namespace ckfs
