#include "remote/remote_cache.h"

#include <spdlog/spdlog.h>
#include <vector>

#include "cache/cached_listing.h"

namespace ckfs {
namespace {

std::optional<std::string> name_in_cache(const SourceLocation& location,
                                         std::string_view endpoint_url) {
  return cache_name(location, cache_endpoint(location, endpoint_url));
}

}  // namespace

const BlockCache::Source* RemoteCache::place_of(const SourceLocation& location) const {
  const auto name = name_in_cache(location, endpoint_url);
  const auto found = name ? places.find(*name) : places.end();
  return found == places.end() ? nullptr : &found->second;
}

Result<RemoteCache> open_remote_cache(std::span<const SourceLocation> locations,
                                      const RemoteCacheOptions& options) {
  RemoteCache cache{.endpoint_url = options.endpoint_url, .fills = options.fills};
  std::vector<std::string> names;
  for (const SourceLocation& location : locations) {
    if (auto name = name_in_cache(location, options.endpoint_url))
      names.push_back(*std::move(name));
  }
  if (options.size == 0 || names.empty()) return cache;
  const auto opened = [&]() -> Result<std::unique_ptr<BlockCache>> {
    if (options.directory) {
      cache.directory = *options.directory;
    } else {
      CKFS_TRY(cache.directory, default_cache_directory());
    }
    CKFS_TRY(auto blocks, BlockCache::open(cache.directory, {.size = options.size}));
    for (const std::string& name : names) {
      CKFS_TRY(BlockCache::Source place, blocks->source(name));
      cache.places.insert_or_assign(name, std::move(place));
    }
    return blocks;
  };
  auto blocks = opened();
  if (blocks) {
    cache.blocks = *std::move(blocks);
    return cache;
  }
  if (options.directory) return Failure(std::move(blocks).error());
  spdlog::warn("{} (sources on other machines are read without a cache)", blocks.error().message());
  cache.places.clear();
  return cache;
}

bool has_listing(const SourceLocation& location, const RemoteCacheOptions& options) {
  const auto name = name_in_cache(location, options.endpoint_url);
  auto directory = options.directory ? *options.directory : default_cache_directory();
  if (options.size == 0 || !name || !directory) return false;
  const auto blocks =
      BlockCache::open(*directory, {.size = options.size, .missing = CacheOptions::Missing::Fail});
  if (!blocks) return false;
  const auto place = (*blocks)->source(*name);
  return place && get_listing(**blocks, *place, location).has_value();
}

}  // namespace ckfs
