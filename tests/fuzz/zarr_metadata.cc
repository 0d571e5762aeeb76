// Fuzz target: .zarray and zarr.json. What is accepted must be a grid whose parts fit each other.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "format/zarr_read.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const zarr::Version version : {zarr::Version::V2, zarr::Version::V3}) {
    const auto read = zarr::parse_metadata(version, text, "w");
    if (!read) {
      CKFS_CHECK(read.error().message().find('\n') == std::string::npos);
      continue;
    }
    const std::size_t rank = read->shape.size();
    CKFS_CHECK(read->chunk.size() == rank && read->inner.size() == rank);
    for (std::size_t d = 0; d < rank; ++d) {
      CKFS_CHECK(read->shape[d] >= 0 && read->inner[d] > 0);
      CKFS_CHECK(read->chunk[d] % read->inner[d] == 0);
    }
    for (const auto* order :
         {&read->codecs.order, read->sharding ? &read->sharding->order : nullptr}) {
      if (order == nullptr || order->empty()) continue;
      auto sorted = *order;
      std::ranges::sort(sorted);
      for (std::size_t d = 0; d < rank; ++d) CKFS_CHECK(sorted[d] == static_cast<std::int64_t>(d));
    }
    CKFS_CHECK(read->inner_numel() > 0);
    CKFS_CHECK(read->fill.empty() || read->fill.size() == static_cast<std::size_t>(read->width));
    // A name that parses is the one that would be written.
    const auto index = zarr::parse_chunk_name(read->names, rank, text.substr(0, 40));
    CKFS_CHECK(!index || index->size() == rank);
  }
  return 0;
}
