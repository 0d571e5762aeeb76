// Offsets come from the lengths that were saved, by prefix sums, never from the padding rules of
// the writers: those differ between releases (trimmed on every rank, on the last only, not at all),
// and with all of them the concatenation of the saved parts is right up to the last parameter.
#include "source/deepspeed/zero_layout.h"

#include <algorithm>

#include "base/error.h"

namespace ckfs {

FlatVector::FlatVector(std::vector<RankPiece> pieces, std::uint64_t width)
    : pieces_(std::move(pieces)), width_(width) {
  begins_.push_back(0);
  for (const RankPiece& piece : pieces_) begins_.push_back(begins_.back() + piece.numel);
}

void FlatVector::append_extents(std::int64_t begin, std::int64_t count,
                                std::vector<Extent>& out) const {
  const std::int64_t end = begin + count;
  CKFS_CHECK(begin >= 0 && count >= 0 && end <= numel());
  // The last piece that begins at or before `begin`; empty ones before it end there too.
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), begin);
  auto rank = static_cast<std::size_t>(after - begins_.begin()) - 1;
  for (; begin < end; ++rank) {
    const std::int64_t stop = std::min(end, begins_[rank + 1]);
    if (stop <= begin) continue;
    const auto skipped = static_cast<std::uint64_t>(begin - begins_[rank]);
    out.push_back({pieces_[rank].file, pieces_[rank].offset + skipped * width_,
                   static_cast<std::uint64_t>(stop - begin) * width_});
    begin = stop;
  }
}

std::int64_t partition_numel(std::int64_t numel, std::int64_t world) {
  return numel / world + (numel % world != 0 ? 1 : 0);
}

void append_partitioned(std::span<const RankPiece> pieces, std::uint64_t width, std::int64_t at,
                        std::int64_t numel, std::vector<Extent>& out) {
  const std::int64_t part = partition_numel(numel, static_cast<std::int64_t>(pieces.size()));
  for (const RankPiece& piece : pieces) {
    if (numel == 0) return;
    const std::int64_t here = std::min(part, numel);
    CKFS_CHECK(at >= 0 && here <= piece.numel - at);
    out.push_back({piece.file, piece.offset + static_cast<std::uint64_t>(at) * width,
                   static_cast<std::uint64_t>(here) * width});
    numel -= here;
  }
}

}  // namespace ckfs
