// Reads that leave the page cache as they found it: a terabyte that is copied once would push all
// other pages of the host out of it.
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

/// Reader::read(), for local files with RWF_DONTCACHE where it works. Pages that it brought in, or
/// that a hint before it brought in, leave the cache. Pages that others brought in stay, unless the
/// kernel does not say that they were there (page_cache.h). There are exceptions, because pages are
/// not looked at one by one:
///   - Pages of others leave the cache with a hint's piece (page_cache.h) whose first or last page
///     was missing, and at the first page of an access and the last of the file.
///   - Without RWF_DONTCACHE all pages of an access stay if a page of others was in the middle.
///   - The pages of an access stay if the bytes in them that it does not read are more than an
///     eighth of its size: another reader wants those.
///   - Pages of remote files stay: the cache has them together with bytes that the server streams
///     ahead.
/// `from` has an entry for each access. Sets Access::uncached of each.
[[nodiscard]] tl::expected<void, AccessFailure> read_accesses_once(Reader& reader,
                                                                   std::vector<Access>& accesses,
                                                                   std::span<const OnceFile> from);

}  // namespace ckfs
