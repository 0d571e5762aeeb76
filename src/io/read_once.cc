// RWF_DONTCACHE (6.14; ext4, xfs, btrfs) knows page by page what it brought in. Elsewhere what was
// read is dropped behind the read, unless a page of it was there before: some of the pages of an
// access may then be ours and stay. O_DIRECT would do without the cache, but wants aligned buffers,
// offsets and sizes, and reads from the disk what lies in memory.
#include "io/read_once.h"

#include <cerrno>

namespace ckfs {
namespace {

using Answer = FileSystem::Answer;

/// Whether a read fails so because of RWF_DONTCACHE: by file system, kernel, or both.
bool refuses_uncached(const AccessFailure& failure) {
  return failure.error == EOPNOTSUPP || failure.error == EINVAL;
}

/// Whether the pages of `access` are to be dropped after it.
bool drops(const Access& access, const OnceFile& from) {
  if (from.file_system->traits.remote) return false;
  const ByteRange range{access.offset, access.offset + access.size};
  if (from.hinted->take(range)) return true;
  if (from.file_system->reads_uncached.load(std::memory_order_relaxed) == Answer::Yes) return false;
  return !page_cache::has_cached_page(access.fd, range);
}

}  // namespace

tl::expected<void, AccessFailure> read_accesses_once(Reader& reader, std::vector<Access>& accesses,
                                                     std::span<const OnceFile> from) {
  std::vector<char> drop;
  for (std::size_t i = 0; i < accesses.size(); ++i) drop.push_back(drops(accesses[i], from[i]));
  while (true) {
    for (std::size_t i = 0; i < accesses.size(); ++i) {
      const FileSystem& on = *from[i].file_system;
      accesses[i].uncached =
          !on.traits.remote && on.reads_uncached.load(std::memory_order_relaxed) != Answer::No;
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
    if (drop[i] != 0) {
      page_cache::drop(access.fd, {access.offset, access.offset + access.size}, from[i].size);
    }
  }
  return {};
}

}  // namespace ckfs
