// Size and mtime in nanoseconds differ between versions of a file. Where inode numbers can be
// trusted, they also show a replaced file with a kept mtime (cp -p, rsync). A digest of the content
// would be certain, and cost as much as reading the checkpoint. docs/SEMANTICS.md names the changes
// that this does not see.
#include "io/fingerprint.h"

#include <fmt/format.h>
#include <limits>

#include "base/checked.h"

namespace ckfs {
namespace {

constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;

/// 64 bits of nanoseconds end in 2262; the times of filesystems do not.
std::int64_t nanoseconds(const timespec& time) {
  const auto whole = checked_mul<std::int64_t>(time.tv_sec, kNanosecondsPerSecond);
  const auto exact = whole ? checked_add<std::int64_t>(*whole, time.tv_nsec) : whole;
  return exact.value_or(std::numeric_limits<std::int64_t>::max());
}

}  // namespace

Fingerprint fingerprint_of(const struct stat& status) {
  return {.size = static_cast<std::uint64_t>(status.st_size),
          .mtime_ns = nanoseconds(status.st_mtim),
          .ctime_ns = nanoseconds(status.st_ctim),
          .device = status.st_dev,
          .inode = status.st_ino};
}

std::uint32_t readers_of(const struct stat& status, gid_t group) {
  const bool everybody = (status.st_mode & S_IROTH) != 0;
  const bool of_group = status.st_gid == group ? (status.st_mode & S_IRGRP) != 0 : everybody;
  return 0400U | (of_group ? 0040U : 0U) | (everybody ? 0004U : 0U);
}

std::optional<std::string> difference(const Fingerprint& recorded, const Fingerprint& now,
                                      CompareInodes inodes) {
  if (now.size != recorded.size) return fmt::format("size {}, was {}", now.size, recorded.size);
  if (now.mtime_ns != recorded.mtime_ns) {
    return fmt::format("modified at {} ns, was {} ns", now.mtime_ns, recorded.mtime_ns);
  }
  if (inodes == CompareInodes::On &&
      (now.inode != recorded.inode || now.device != recorded.device)) {
    return fmt::format("replaced by another file (inode {}, was {})", now.inode, recorded.inode);
  }
  return std::nullopt;
}

std::optional<std::string> ctime_change(const Fingerprint& recorded, const Fingerprint& now,
                                        CompareInodes inodes) {
  if (inodes == CompareInodes::Off || now.ctime_ns == recorded.ctime_ns) return std::nullopt;
  if (difference(recorded, now, inodes)) return std::nullopt;
  return fmt::format("its attributes changed at {} ns, before that at {} ns", now.ctime_ns,
                     recorded.ctime_ns);
}

}  // namespace ckfs
