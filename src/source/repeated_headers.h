// The cost of one file with many names. A file's own bytes bound its headers, but a link takes next
// to none: a hundred links to one file would have its headers parsed a hundred times.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "base/byte_source.h"
#include "base/error.h"
#include "base/mutex.h"
#include "io/source_files.h"

namespace ckfs {

/// The most bytes of headers and texts that one opening of a checkpoint reads under further names
/// of a file, and as many again where it looks through headers before it reads them. Each thread
/// may read one more torch file before that is noticed. (A hub cache has one file for all of the
/// same content: layers that are all ones.)
inline constexpr std::uint64_t kMaxRepeatedHeaders = std::uint64_t{16} << 20;

/// Of one opening. Safe for concurrent use.
class RepeatedHeaders {
 public:
  /// `files` must outlive it.
  explicit RepeatedHeaders(const SourceFiles& files) : files_(files) {}

  /// Notes that `bytes` of headers of `file` are read. Errors: Corrupt (too many of files that have
  /// other names too).
  Result<void> add(FileId file, std::uint64_t bytes) {
    const Fingerprint& fingerprint = files_.fingerprint(file);
    const MutexLock lock(mutex_);
    const auto [first, is_new] =
        first_names_.emplace(std::pair(fingerprint.device, fingerprint.inode), file);
    // Where a file system has no inodes, 0, nothing is known of names.
    if (first->second == file || fingerprint.inode == 0) return {};
    repeated_ += bytes;
    if (repeated_ <= kMaxRepeatedHeaders) return {};
    return fail(ErrorCode::Corrupt,
                "{}: another name of {}, which was read already (limit {} bytes of such)",
                files_.name(file), files_.name(first->second), kMaxRepeatedHeaders);
  }

 private:
  const SourceFiles& files_;
  Mutex mutex_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, FileId> first_names_ CKFS_GUARDED_BY(mutex_);
  std::uint64_t repeated_ CKFS_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckfs
