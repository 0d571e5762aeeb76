// What the disk cache knows of a source beside its bytes: which name it has there, and its listing.
// With the listing and the bytes a source can be opened without a request (`--offline`); with the
// listing alone only its version must be asked for.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cache/block_cache.h"
#include "fetch/remote_source.h"

namespace ckfs {

/// The name of a source in the cache: its location without the revision, and the service's address
/// where that is not its own. nullopt: it must not be kept, because the location has secrets (a
/// signed URL, a password), which the disk must not have, and without which it names something
/// else. `endpoint`: as cache_endpoint() gives it.
std::optional<std::string> cache_name(const SourceLocation& location, std::string_view endpoint);

/// The address that a service is asked at instead of its own: of `--endpoint-url`, else of the
/// environment variables that the fetcher heeds; "" where there is none. (An endpoint of a profile
/// of AWS is not seen: there an object is told by bucket, key, size and ETag alone.)
std::string cache_endpoint(const SourceLocation& location, std::string_view endpoint_url);

/// Which object of the cache an object of a listing is.
inline CacheObject cache_object(const RemoteObject& object) {
  return {.name = object.name, .version = object.version, .size = object.size};
}

/// Keeps a listing for the location that was asked for, and for the one that it was pinned to.
/// Requires: the location has a name in the cache, and `source` is that of its listing.
void put_listing(BlockCache& cache, const BlockCache::Source& place, const SourceLocation& asked,
                 const RemoteSource& source);

/// The listing that was kept last for the location. Of one whose revision is a commit it is true
/// still; of others it says what the source was then.
std::optional<RemoteSource> get_listing(BlockCache& cache, const BlockCache::Source& place,
                                        const SourceLocation& asked);

}  // namespace ckfs
