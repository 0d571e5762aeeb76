// Functions that glibc has from 2.36 on, as it has them, for programs that run on 2.34.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" {

// Expat and std::random_device of the static libstdc++ ask for these two.

void arc4random_buf(void* buffer, std::size_t size) noexcept {
  for (auto* at = static_cast<char*>(buffer); size > 0;) {
    const ssize_t got = ::getrandom(at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) std::abort();
    at += got;
    size -= static_cast<std::size_t>(got);
  }
}

std::uint32_t arc4random() noexcept {
  std::uint32_t value = 0;
  arc4random_buf(&value, sizeof(value));
  return value;
}

// Of sys/mount.h, which is not included: it may declare them, or have none.
int fsopen(const char* type, unsigned flags) noexcept {
  return static_cast<int>(::syscall(SYS_fsopen, type, flags));
}

int fsconfig(int fd, unsigned command, const char* key, const void* value, int aux) noexcept {
  return static_cast<int>(::syscall(SYS_fsconfig, fd, command, key, value, aux));
}

int fsmount(int fd, unsigned flags, unsigned attributes) noexcept {
  return static_cast<int>(::syscall(SYS_fsmount, fd, flags, attributes));
}

}  // extern "C"
