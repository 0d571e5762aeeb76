// What of a file is compared to detect that it is no longer the one that was opened. Pure
// functions; the system calls are source_store.cc's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <sys/stat.h>

namespace ckfs {

/// What differs between two versions of a file.
struct Fingerprint {
  std::uint64_t size = 0;
  std::int64_t mtime_ns = 0;
  std::int64_t ctime_ns = 0;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  /// Who may read it, as readers_of() says; no part of difference().
  std::uint32_t readers = 0444;
  /// Of a file of another machine: a hash of what its server calls this content; no part of
  /// difference(), for the server compares. 0: of this machine.
  std::uint64_t version = 0;

  bool operator==(const Fingerprint&) const = default;
};

/// But `readers`. Times outside of 64 bits of ns (the years 1678 to 2262) are the latest there is.
Fingerprint fingerprint_of(const struct stat& status);

/// Bits of 0444: who may read the file, said of a copy of it that has the caller's user and the
/// group `group`. Where the file's own group is another, that of the copy may not do more than
/// everybody.
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
