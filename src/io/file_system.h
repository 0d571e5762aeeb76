// What the file system below a source means for reading it. One table for all questions.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "io/pace.h"

namespace ckfs {

struct FileSystemTraits {
  /// A file keeps its inode number as long as it exists. Network and FUSE servers may number as
  /// they like, and FAT has no numbers: the kernel makes them up each time.
  bool stable_inodes = true;
  /// Bytes come from a server, perhaps as one stream for each open file: reading in order is cheap,
  /// and a jump starts over. The kernel's read-ahead makes the stream, and is left alone there.
  bool remote = false;
  /// It has no device of its own (st_dev), and yet lies on disks of this machine, or in its memory.
  bool without_device = false;
};

/// Of a statfs f_type. FUSE is remote: which FUSE file systems lie on a local disk cannot be seen.
FileSystemTraits traits_of(std::int64_t file_system_type);

/// The known properties of one mounted file system; reading finds out some of them. Safe for
/// concurrent use by several threads.
struct FileSystem {
  FileSystemTraits traits;
  /// It lies on disks of this machine, or in its memory, for certain: a hint starts what a read
  /// would wait for. Of servers that are not in the table nothing is assumed.
  bool on_disk = false;
  /// How many bytes one hint may ask for; the kernel ignores the rest (page_cache.h).
  std::uint64_t hint_bytes = 0;
  enum class Answer : std::uint8_t { Unknown, Yes, No };
  /// Whether reads may have RWF_DONTCACHE: found out by the first.
  std::atomic<Answer> reads_uncached{Answer::Unknown};
  /// Whether a descriptor may have O_DIRECT, for blocks of kDiskBlock: found out by the first.
  std::atomic<Answer> reads_direct{Answer::Unknown};
  /// Whether bytes that were read in order were in the page cache after that; Yes where the kernel
  /// does not say (page_cache.h). Not so where files are open with FOPEN_DIRECT_IO: there hints
  /// would have bytes read twice.
  std::atomic<Answer> keeps_pages{Answer::Unknown};
  Pace pace{};
};

/// The file systems that files of a source lie on, by device. Safe for concurrent use.
class FileSystems {
 public:
  /// Of an open file on `device` (st_dev). The object lives as long as this one.
  FileSystem& of(std::uint64_t device, int fd);

 private:
  Mutex mutex_;
  std::map<std::uint64_t, std::unique_ptr<FileSystem>> by_device_ CKFS_GUARDED_BY(mutex_);
};

}  // namespace ckfs
