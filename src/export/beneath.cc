// A path that is checked for links and then used may change between the two. Here the walk itself
// is the check: a directory that is open cannot be exchanged.
#include "export/beneath.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ckfs {
namespace {

constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

int open_component(int directory, const std::string& name) {
  const int fd = ::openat(directory, name.c_str(), kFlags | O_NOFOLLOW);
  if (fd >= 0 || errno != ENOTDIR) return fd;
  // O_DIRECTORY comes before O_NOFOLLOW: a link is reported as "not a directory".
  struct stat status{};
  const bool link = ::fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                    S_ISLNK(status.st_mode);
  errno = link ? ELOOP : ENOTDIR;
  return -1;
}

UniqueFd walk_components(int top, const std::string& path) {
  UniqueFd here;
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    UniqueFd next(open_component(here ? here.get() : top, path.substr(begin, end - begin)));
    if (!next) return next;
    here = std::move(next);
    begin = end + 1;
  }
  return here;
}

}  // namespace

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash);
}

UniqueFd open_directory_beneath(int top, const std::string& path, PathWalk walk) {
  if (path.empty()) return UniqueFd(::openat(top, ".", kFlags));
  if (walk == PathWalk::Kernel) {
    open_how how{};
    how.flags = kFlags;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
    // EAGAIN: something was renamed during the walk, so that ".." would be in doubt.
    for (int attempt = 0; attempt < 8; ++attempt) {
      UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, top, path.c_str(), &how, sizeof how)));
      if (fd) return fd;
      if (errno != EAGAIN && errno != EINTR) break;
    }
    // EPERM is what sandboxes answer that were made before openat2; the kernel itself never
    // answers it for opening a directory to read.
    if (errno != ENOSYS && errno != EPERM && errno != EAGAIN) return {};
  }
  return walk_components(top, path);
}

}  // namespace ckfs
