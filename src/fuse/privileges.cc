// The system calls by hand: libcap would be a dependency for two of them.

#include "fuse/privileges.h"

#include <array>
#include <cerrno>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ckfs {

Result<void> drop_privileges() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> sets{};
  if (::syscall(SYS_capget, &header, sets.data()) != 0) {
    return system_failure(errno, "capabilities", "capget");
  }
  constexpr std::array<std::uint32_t, _LINUX_CAPABILITY_U32S_3> kKept = {
      1U << CAP_SYS_ADMIN | 1U << CAP_DAC_READ_SEARCH, 0};
  for (std::size_t i = 0; i < sets.size(); ++i) {
    sets[i].permitted &= kKept[i];
    sets[i].effective &= kKept[i];
    sets[i].inheritable = 0;
  }
  if (::syscall(SYS_capset, &header, sets.data()) != 0) {
    return system_failure(errno, "capabilities", "capset");
  }
  if (::geteuid() == 0 && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    return system_failure(errno, "capabilities", "PR_SET_NO_NEW_PRIVS");
  }
  return {};
}

}  // namespace ckfs
