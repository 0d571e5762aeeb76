// Advice to the host's page cache about a file. Nothing here fails, and nothing changes a byte.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/byte_range.h"
#include "base/mutex.h"

namespace ckfs::page_cache {

/// The kernel shall read what is asked for and no more: no read-ahead on this descriptor. For local
/// files; in others for jumps, and for the first request after one.
///
/// It has a price (6.18, ext4): without read-ahead pages come into the cache one by one and not as
/// large folios, which costs 0.2 to 0.3 ms of CPU for each MiB read cold, and copies from the cache
/// take a fifth to a half longer than from large folios.
void expect_exact_reads(int fd);

/// The end of expect_exact_reads(): the kernel reads ahead as it likes.
void expect_reads_in_order(int fd);

/// Reads go past the page cache (O_DIRECT), where the file system can do that.
void bypass(int fd);
bool bypasses(int fd);

/// How many bytes one POSIX_FADV_WILLNEED may ask for on `device` (st_dev). The kernel cuts each
/// call to the larger of the device's read-ahead and its largest request, and silently drops the
/// rest (force_page_cache_ra; seen on 6.18: of 64 MiB in one call, read_ahead_kb were read).
std::uint64_t hint_bytes(std::uint64_t device);

/// `range`, grown outward to whole pages; at the end of the file to that. Requires: it lies within
/// a file of `size` bytes.
ByteRange whole_pages(ByteRange range, std::uint64_t size);

/// Starts reading `range`, `hint_bytes` at a time, in order, and does not wait for the bytes.
/// Pieces whose first and last page are in the cache are left out.
///
/// Not free (6.18, ext4): 0.4 to 1 ms for each MiB that must be read (pages are allocated by the
/// caller), and without that look at both ends 15 to 70 us for each MiB that is in the cache, which
/// is a tenth of the copy. So when to hint is the caller's decision.
/// Returns the pieces that were asked for.
std::vector<ByteRange> will_need(int fd, ByteRange range, std::uint64_t hint_bytes);

/// The pages (kPage) of `range` in the cache; nullopt where the kernel does not know (older than
/// 6.5, or one whose pages are larger), or does not say (of a file that this process neither owns
/// nor may write).
std::optional<std::uint64_t> cached_pages(int fd, ByteRange range);

/// Whether all pages of `range` are in the cache; `if_unknown` if the kernel does not know.
bool is_cached(int fd, ByteRange range, bool if_unknown);

/// The number of bytes of `range` that are neither in the cache nor on their way into it. May be
/// too low by a page at each end. All of them if the kernel does not know.
std::uint64_t missing(int fd, ByteRange range);

/// Whether a page that lies wholly in `range` is in the cache. False if the kernel does not know.
bool has_cached_page(int fd, ByteRange range);

/// Takes pages of `range` out of the cache, except pages that a process has mapped or changed. A
/// page that ends behind `range` stays: the next reader finishes it. `size`: of the file, whose
/// last page ends with it.
void drop(int fd, ByteRange range, std::uint64_t size);

/// Ranges that will_need() brought in, for a reader that reads them once to drop them again:
/// RWF_DONTCACHE leaves pages that were in the cache before. Bounded: the oldest are forgotten, and
/// stay in the cache. Safe for concurrent use by several threads.
class HintedRanges {
 public:
  void add(const std::vector<ByteRange>& ranges);
  /// Whether any of `range` was added and not taken since.
  bool has(ByteRange range) const;
  /// Takes the parts of `range` for which has() is true: afterwards it is false for them.
  std::vector<ByteRange> take(ByteRange range);

 private:
  void forget_oldest() CKFS_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<ByteRange> ranges_ CKFS_GUARDED_BY(mutex_);  // the oldest first
};

}  // namespace ckfs::page_cache
