// Functions that glibc has from 2.36 on, as it has them, for programs that run on 2.34.
#include <cstdint>
#include <cstdlib>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" {

/// std::random_device of the static libstdc++ of Debian 12 asks for it.
std::uint32_t arc4random() noexcept {
  std::uint32_t value = 0;
  if (::getrandom(&value, sizeof(value), 0) != sizeof(value)) std::abort();
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
