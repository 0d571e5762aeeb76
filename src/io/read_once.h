// Reads that leave the page cache as they found it: a terabyte that is copied once would push out
// all that the host has in it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "io/file_system.h"
#include "io/page_cache.h"
#include "io/reader.h"

namespace ckfs {

/// What an access reads from.
struct OnceFile {
  FileSystem* file_system = nullptr;
  page_cache::HintedRanges* hinted = nullptr;  // nullptr: none of it was hinted
  std::uint64_t size = 0;
};

/// Reader::read(), for local files with RWF_DONTCACHE where it works. What it brought in, or a hint
/// before it, leaves the cache; what others brought in stays, unless the kernel does not say that
/// it was there (page_cache.h). It is not looked at page by page: pages of others go with a hint's
/// piece (page_cache.h) whose first or last page was missing, and at the first page of an access
/// and the last of the file; and without RWF_DONTCACHE all of an access stays that one of them was
/// in the middle of. What an access brings in whose pages have more than an eighth of its size of
/// the file besides stays, too: somebody wants the rest. Of remote files all stays: what the server
/// streams ahead is cached with them. `from` has an entry for each access. Sets Access::uncached of
/// each.
[[nodiscard]] tl::expected<void, AccessFailure> read_accesses_once(Reader& reader,
                                                                   std::vector<Access>& accesses,
                                                                   std::span<const OnceFile> from);

}  // namespace ckfs
