// RWF_DONTCACHE (6.14; ext4, xfs, btrfs) knows page by page what it brought in. Elsewhere all pages
// of a read are dropped behind it, unless one of them was there before: then all stay, though some
// may be ours. O_DIRECT would do without the cache, but wants aligned buffers, offsets and sizes,
// and reads bytes from the disk that memory has.
#include "io/read_once.h"

#include <algorithm>
#include <cerrno>

#include "base/rounding.h"
#include "base/units.h"

namespace ckfs {
namespace {

using Answer = FileSystem::Answer;

/// Whether a read fails so because of RWF_DONTCACHE: by file system, kernel, or both.
bool refuses_uncached(const AccessFailure& failure) {
  return failure.error == EOPNOTSUPP || failure.error == EINVAL;
}

/// Whether other readers will want the pages at the ends of `access`. A reader of a few bytes of
/// each row shares pages with the readers of the other bytes: if it dropped them, a matrix that is
/// cut into 16 by columns would come from the disk 16 times. Of a long access the pages at the ends
/// are few. Bytes behind the end of the file do not count.
bool shares_pages(const Access& access, std::uint64_t file_size) {
  constexpr std::uint64_t kFew = 8;  // a part of so many of an access
  const std::uint64_t end = access.offset + access.size;
  const std::uint64_t before = access.offset % kPage;
  const std::uint64_t last = std::max(end, std::min(round_up(end, kPage), file_size));
  return before + (last - end) > access.size / kFew;
}

/// Ranges whose pages are to be dropped after `access`.
std::vector<ByteRange> drops(const Access& access, const OnceFile& from) {
  if (from.file_system->traits.remote) return {};
  const ByteRange range{access.offset, access.offset + access.size};
  std::vector<ByteRange> hinted;
  if (from.hinted != nullptr) hinted = from.hinted->take(range);
  if (shares_pages(access, from.size)) return {};
  if (from.file_system->reads_uncached.load(std::memory_order_relaxed) == Answer::Yes)
    return hinted;
  // Hints leave out pieces with both ends in the cache.
  std::vector<ByteRange> ours = hinted;
  std::ranges::sort(hinted, {}, &ByteRange::begin);
  hinted.push_back({range.end, range.end});
  std::uint64_t at = range.begin;
  for (const ByteRange& next : hinted) {
    const ByteRange between{at, next.begin};
    if (!between.empty() && !page_cache::has_cached_page(access.fd, between)) {
      ours.push_back(between);
    }
    at = next.end;
  }
  return ours;
}

}  // namespace

tl::expected<void, AccessFailure> read_accesses_once(Reader& reader, std::vector<Access>& accesses,
                                                     std::span<const OnceFile> from) {
  std::vector<std::vector<ByteRange>> drop;
  for (std::size_t i = 0; i < accesses.size(); ++i) drop.push_back(drops(accesses[i], from[i]));
  while (true) {
    for (std::size_t i = 0; i < accesses.size(); ++i) {
      const FileSystem& on = *from[i].file_system;
      accesses[i].uncached = !on.traits.remote && !shares_pages(accesses[i], from[i].size) &&
                             on.reads_uncached.load(std::memory_order_relaxed) != Answer::No;
    }
    auto done = reader.read(accesses);
    if (done) break;
    const std::size_t at = done.error().access;
    if (!refuses_uncached(done.error()) || !accesses[at].uncached) return done;
    from[at].file_system->reads_uncached.store(Answer::No, std::memory_order_relaxed);
  }
  for (std::size_t i = 0; i < accesses.size(); ++i) {
    const Access& access = accesses[i];
    if (access.uncached) {
      from[i].file_system->reads_uncached.store(Answer::Yes, std::memory_order_relaxed);
    }
    for (const ByteRange& range : drop[i]) page_cache::drop(access.fd, range, from[i].size);
  }
  return {};
}

}  // namespace ckfs
