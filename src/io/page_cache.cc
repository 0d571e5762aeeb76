// Hints have to be small: see hint_bytes(). Other calls than posix_fadvise() would not help:
// readahead(2) is the same call, madvise needs a mapping, and io_uring's fadvise would hand each
// hint to a kernel thread, for a call that does not wait.
#include "io/page_cache.h"

#include <algorithm>
#include <fcntl.h>
#include <fmt/format.h>
#include <fstream>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/units.h"

namespace ckfs::page_cache {
namespace {

/// The kernel's own default for read-ahead: no device is cut to less unless its owner wants it.
constexpr std::uint64_t kLeastHint = std::uint64_t{128} << 10;
constexpr std::uint64_t kMostHint = std::uint64_t{2} << 20;
constexpr std::size_t kMostHintedRanges = 64;

constexpr std::uint64_t down(std::uint64_t offset) {
  return offset / kPage * kPage;
}

// Debian 12's headers do not know cachestat, which came with 6.5.
constexpr long kCachestat = 451;
struct CachestatRange {
  std::uint64_t offset;
  std::uint64_t length;
};
struct Cachestat {
  std::uint64_t cached, dirty, writeback, evicted, recently_evicted;
};

}  // namespace

void expect_exact_reads(int fd) {
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
}

void expect_reads_in_order(int fd) {
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL);
}

void bypass(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags >= 0) ::fcntl(fd, F_SETFL, flags | O_DIRECT);
}

bool bypasses(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & O_DIRECT) != 0;
}

std::uint64_t hint_bytes(std::uint64_t device) {
  std::ifstream file(fmt::format("/sys/class/bdi/{}:{}/read_ahead_kb", gnu_dev_major(device),
                                 gnu_dev_minor(device)));
  std::uint64_t kilobytes = 0;
  if (!(file >> kilobytes) || kilobytes > kMostHint / 1024) kilobytes = file ? kMostHint / 1024 : 0;
  return std::clamp(kilobytes * 1024, kLeastHint, kMostHint);
}

ByteRange whole_pages(ByteRange range, std::uint64_t size) {
  if (range.empty()) return range;
  const std::uint64_t begin = down(range.begin);
  const std::uint64_t last = down(range.end - 1);
  return {begin, size - last < kPage ? size : last + kPage};
}

std::optional<std::uint64_t> cached_pages(int fd, ByteRange range) {
  if (range.empty()) return 0;  // to the kernel, length 0 is all of the file
  static const bool counts_ours = ::sysconf(_SC_PAGESIZE) == static_cast<long>(kPage);
  if (!counts_ours) return std::nullopt;
  CachestatRange asked{range.begin, range.size()};
  Cachestat answer{};
  if (::syscall(kCachestat, fd, &asked, &answer, 0) != 0) return std::nullopt;
  return answer.cached;
}

std::vector<ByteRange> will_need(int fd, ByteRange range, std::uint64_t hint_bytes) {
  std::vector<ByteRange> asked;
  for (std::uint64_t begin = range.begin; begin < range.end;) {
    // Cut where the file's own multiples are, so that neighbouring hints make equal requests.
    const std::uint64_t end = std::min(range.end, (begin / hint_bytes + 1) * hint_bytes);
    const ByteRange first{begin, std::min(begin + kPage, end)}, last{down(end - 1), end};
    const bool cached =
        cached_pages(fd, first).value_or(0) > 0 && cached_pages(fd, last).value_or(0) > 0;
    if (!cached) {
      ::posix_fadvise(fd, static_cast<off_t>(begin), static_cast<off_t>(end - begin),
                      POSIX_FADV_WILLNEED);
      asked.push_back({begin, end});
    }
    begin = end;
  }
  return asked;
}

bool is_cached(int fd, ByteRange range, bool if_unknown) {
  const auto cached = cached_pages(fd, range);
  if (!cached) return if_unknown;
  return *cached == down(range.end + kPage - 1) / kPage - range.begin / kPage;
}

std::uint64_t missing(int fd, ByteRange range) {
  return range.size() - std::min(range.size(), cached_pages(fd, range).value_or(0) * kPage);
}

bool has_cached_page(int fd, ByteRange range) {
  const std::uint64_t begin = down(range.begin + kPage - 1), end = down(range.end);
  return begin < end && cached_pages(fd, {begin, end}).value_or(0) > 0;
}

void drop(int fd, ByteRange range, std::uint64_t size) {
  const std::uint64_t begin = down(range.begin);
  const std::uint64_t end = range.end == size ? size : down(range.end);
  if (begin >= end) return;  // length 0 would be all of the file
  ::posix_fadvise(fd, static_cast<off_t>(begin), static_cast<off_t>(end - begin),
                  POSIX_FADV_DONTNEED);
}

void HintedRanges::add(const std::vector<ByteRange>& ranges) {
  const MutexLock lock(mutex_);
  for (const ByteRange& range : ranges) {
    if (!ranges_.empty() && ranges_.back().end == range.begin) {
      ranges_.back().end = range.end;
    } else {
      ranges_.push_back(range);
    }
  }
  forget_oldest();
}

bool HintedRanges::has(ByteRange range) const {
  const MutexLock lock(mutex_);
  return std::ranges::any_of(
      ranges_, [&](const ByteRange& hinted) { return !hinted.intersect(range).empty(); });
}

std::vector<ByteRange> HintedRanges::take(ByteRange range) {
  const MutexLock lock(mutex_);
  std::vector<ByteRange> rest, found;
  for (const ByteRange& hinted : ranges_) {
    const ByteRange common = hinted.intersect(range);
    if (common.empty()) {
      rest.push_back(hinted);
      continue;
    }
    found.push_back(common);
    if (hinted.begin < common.begin) rest.push_back({hinted.begin, common.begin});
    if (common.end < hinted.end) rest.push_back({common.end, hinted.end});
  }
  ranges_ = std::move(rest);
  forget_oldest();
  return found;
}

void HintedRanges::forget_oldest() {
  if (ranges_.size() <= kMostHintedRanges) return;
  ranges_.erase(ranges_.begin(), ranges_.end() - static_cast<std::ptrdiff_t>(kMostHintedRanges));
}

}  // namespace ckfs::page_cache
