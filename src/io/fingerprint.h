// What of a file is compared to detect that it is no longer the one that was opened. Pure
// functions; the system calls are source_store.cc's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <sys/stat.h>

namespace ckfs {

/// The properties that differ between two versions of a file.
struct Fingerprint {
  std::uint64_t size = 0;
  std::int64_t mtime_ns = 0;
  std::int64_t ctime_ns = 0;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  /// The users that may read it, as readers_of() says; not a part of difference().
  std::uint32_t readers = 0444;
  /// A hash of its server's name for this content, if the file is of another machine; else 0. Not a
  /// part of difference(): the server compares.
  std::uint64_t version = 0;

  bool operator==(const Fingerprint&) const = default;
};

/// All except `readers`. Times outside of 64 bits of ns (the years 1678 to 2262) are the latest
/// there are.
Fingerprint fingerprint_of(const struct stat& status);

/// Bits of 0444: the users that may read the file, for a copy of it that has the caller's user and
/// the group `group`. If the file's own group is another, the group of the copy may do no more than
/// all other users.
std::uint32_t readers_of(const struct stat& status, gid_t group);

enum class CompareInodes : std::uint8_t { Off, On };

/// The first difference in words ("size 10, was 20"); nullopt: the same version of the same file.
/// ctime is not looked at: chmod and new hard links change it as well.
std::optional<std::string> difference(const Fingerprint& recorded, const Fingerprint& now,
                                      CompareInodes inodes);

/// The change of ctime in words where it is the only one; nullopt: none, or there is a
/// difference(). Where inodes are not compared the server makes ctime up too, and there is none.
std::optional<std::string> ctime_change(const Fingerprint& recorded, const Fingerprint& now,
                                        CompareInodes inodes);

}  // namespace ckfs
