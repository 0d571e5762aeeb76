// The disk cache (cache/block_cache.h) as the files of other machines use it: with a place for each
// source that a process reads, made before the process is confined.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "cache/block_cache.h"
#include "fetch/remote_source.h"

namespace ckfs {

struct RemoteCacheOptions {
  std::optional<std::filesystem::path> directory = {};  // nullopt: default_cache_directory()
  std::uint64_t size = 0;                               // 0: nothing is kept
  std::string endpoint_url = {};                        // as RemoteOptions has it
  /// Reads wait for the disk, and all that is fetched is kept as far as there is room. Otherwise
  /// bytes that come faster than the disk takes them are left out.
  bool fills = false;
};

struct RemoteCache {
  std::filesystem::path directory = {};
  std::unique_ptr<BlockCache> blocks = {};                             // nullptr: nothing is kept
  std::map<std::string, BlockCache::Source, std::less<>> places = {};  // by cache_name()
  std::string endpoint_url = {};
  bool fills = false;

  /// Where that source is kept; nullptr: nowhere.
  const BlockCache::Source* place_of(const SourceLocation& location) const;
};

/// Opens it for sources at `locations`, those that may not be kept left out. A directory that
/// cannot be used is an error if the caller named it, and a warning in the log otherwise: then
/// nothing is kept. Errors: those of BlockCache::open().
Result<RemoteCache> open_remote_cache(std::span<const SourceLocation> locations,
                                      const RemoteCacheOptions& options);

/// Whether the cache has the listing of a source, by which it can be opened without a request.
/// Makes no cache where there is none.
bool has_listing(const SourceLocation& location, const RemoteCacheOptions& options);

}  // namespace ckfs
