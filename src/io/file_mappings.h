// Local files as they lie in the page cache, looked at without a copy.
//
// Reading is right for bytes that are not in memory: a mapping fetches page by page, in the order
// in which a kernel comes to touch them (half as fast). So mappings are used only where the page
// cache has all of a region. They save the copy out of it. If a caller wants a few bytes of each
// row of a matrix, they save copying the rest of each row.
//
// A page that cannot be had when it is touched (the file was cut, the disk fails) is a SIGBUS. Its
// handler puts zeros in the place of the rest of the mapping and marks it as broken, so that the
// computation runs to its end. The caller of the computation then asks broken() and throws the
// result away. The alternative, to jump out of the computation, would jump over frames of C++. A
// SIGBUS anywhere else, and one that a process sends, has the effect that it had before: a handler
// that was there is called.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/byte_range.h"
#include "base/byte_source.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "base/units.h"

namespace ckfs {

/// A whole file in memory, read-only. Safe for concurrent use by several threads.
class FileMapping {
 public:
  /// nullptr: the file is empty, the system has no room for it, kMostMappings are in use, or the
  /// process's address space is limited (RLIMIT_AS): then it is for what has no other way.
  static std::shared_ptr<FileMapping> make(int fd, std::uint64_t size);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

  /// Whether a page could not be had since the mapping was made. Then all bytes may be zeros.
  bool broken() const;

  /// Whether all pages of `range` are in the page cache, or were when that was looked up: at most a
  /// second ago. A long range is looked up by whole regions, which are remembered for the ranges
  /// beside it: false, for a tenth of a second, also where others of their pages are missing. A
  /// short one within a region is looked up alone (random reads of a large file: a look at 32 MiB
  /// takes 100 us). False where the kernel does not say (page_cache.h). Requires: `range` is not
  /// empty, and lies in the file.
  bool is_cached(int fd, ByteRange range);

  /// The process has no pages of the file any more, until they are touched again.
  void let_go() const;

  static constexpr std::size_t kMostMappings = 1024;  // of a process
  static constexpr std::uint64_t kRegion = 32_MiB;
  static constexpr std::uint64_t kShort = 1_MiB;

 private:
  struct Place;
  struct Places;
  struct GivePlace {
    void operator()(Place* place) const;
  };
  using TakenPlace = std::unique_ptr<Place, GivePlace>;
  FileMapping(std::uint64_t size, TakenPlace place);  // not mapped yet

  std::span<const std::byte> bytes_;
  const TakenPlace place_;  // given back when the bytes are gone
  /// Until when (steady clock, ns) a region counts as cached; negative: as not cached.
  std::vector<std::atomic<std::int64_t>> regions_;
};

/// The mappings of a source. Safe for concurrent use by several threads.
class FileMappings {
 public:
  FileMappings();
  /// The mapping of `file`, made if it is not there; nullptr: it cannot be made.
  std::shared_ptr<FileMapping> of(FileId file, int fd, std::uint64_t size);
  /// The same where it is there already.
  std::shared_ptr<FileMapping> find(FileId file) const;
  void drop(FileId file);

  /// The process lets go of the pages of all mappings.
  void let_go();
  /// Does so where they have become more than `most`: such pages are the page cache's and cost no
  /// memory of their own, but they count as the process's in every list of processes.
  void bound(std::uint64_t most);

  /// Of pages that are used up, for a reader in order.
  static constexpr std::uint64_t kMostResident = 64_MiB;
  /// Of pages from which a cache line or less is wanted: the next random read of a transposed
  /// matrix wants other bytes of them, and to map 2,048 pages anew costs more than to copy from
  /// them.
  static constexpr std::uint64_t kMostSparse = 1_GiB;

 private:
  std::vector<std::shared_ptr<FileMapping>> all() const;

  const UniqueFd statm_;  // opened at once: a sandbox forbids it later
  mutable Mutex mutex_;
  std::unordered_map<FileId, std::shared_ptr<FileMapping>> mappings_ CKFS_GUARDED_BY(mutex_);
  std::atomic<std::int64_t> bounded_{0};  // when
};

}  // namespace ckfs
