// A listing is kept as the fetcher sends it (fetch/protocol.h), whose reader trusts no byte of it:
// every count and name is checked.
#include "cache/cached_listing.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>

#include "base/load_le.h"
#include "fetch/protocol.h"

namespace ckfs {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::optional<std::string> cache_name(const SourceLocation& location, std::string_view endpoint) {
  if (location.text() != location.masked()) return std::nullopt;
  std::string name = location.text();
  if (location.service == RemoteService::Hub) {
    name = fmt::format("hf://{}{}{}", location.container, location.path.empty() ? "" : "/",
                       location.path);
  }
  if (!endpoint.empty()) name += fmt::format(" at {}", endpoint);
  return name;
}

std::string cache_endpoint(const SourceLocation& location, std::string_view endpoint_url) {
  std::string endpoint(endpoint_url);
  switch (location.service) {
    case RemoteService::Hub:
      if (endpoint.empty()) endpoint = variable("HF_ENDPOINT");
      break;
    case RemoteService::S3:
      if (!variable("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").empty()) break;
      if (endpoint.empty()) endpoint = variable("AWS_ENDPOINT_URL_S3");
      if (endpoint.empty()) endpoint = variable("AWS_ENDPOINT_URL");
      break;
    case RemoteService::Gcs:
      if (endpoint.empty()) endpoint = variable("STORAGE_EMULATOR_HOST");
      break;
    case RemoteService::Web:
      return {};
  }
  while (endpoint.ends_with('/')) endpoint.pop_back();
  if (const auto url = parse_url(endpoint)) return url->masked();
  return endpoint;
}

void put_listing(BlockCache& cache, const BlockCache::Source& place, const SourceLocation& asked,
                 const RemoteSource& source) {
  if (source.pinned.text() != source.pinned.masked()) return;
  const std::string head = pack_head(source);
  std::array<std::byte, 8> size{};
  store_le(std::span<std::byte>(size), std::uint64_t{head.size()});
  const std::string text =
      std::string(reinterpret_cast<const char*>(size.data()), size.size()) + head +
      pack_objects(source.objects, std::numeric_limits<std::size_t>::max()).bytes;
  cache.put_text(place, asked.text(), text);
  if (!(source.pinned == asked)) cache.put_text(place, source.pinned.text(), text);
}

std::optional<RemoteSource> get_listing(BlockCache& cache, const BlockCache::Source& place,
                                        const SourceLocation& asked) {
  const auto text = cache.get_text(place, asked.text());
  if (!text || text->size() < 8) return std::nullopt;
  const std::string_view bytes = std::string_view(*text).substr(8);
  const auto size = load_le<std::uint64_t>(std::as_bytes(std::span(text->data(), 8)));
  if (size > bytes.size()) return std::nullopt;
  auto source = unpack_head(bytes.substr(0, size));
  if (!source) return std::nullopt;
  auto objects = unpack_objects(bytes.substr(size));
  if (!objects || !std::ranges::is_sorted(*objects, {}, &RemoteObject::name)) return std::nullopt;
  source->objects = std::move(*objects);
  return std::move(*source);
}

}  // namespace ckfs
