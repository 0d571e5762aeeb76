// Where ZeRO's partitioning puts the elements of a parameter: arithmetic on lengths that were
// saved, nothing read. Pure functions on values.
//
// Stages 1 and 2 lay all parameters of a group end to end and cut the whole into one piece a rank;
// stage 3 cuts every parameter into one piece a rank and lays each rank's pieces end to end.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "catalog/catalog.h"

namespace ckfs {

/// A rank's part of a group: a dense run of elements in one file.
struct RankPiece {
  FileId file = 0;
  std::uint64_t offset = 0;  // bytes
  std::int64_t numel = 0;
};

/// The concatenation of the pieces of all ranks, in rank order.
class FlatVector {
 public:
  /// `width`: bytes of an element. Requires: the sum of numel fits.
  FlatVector(std::vector<RankPiece> pieces, std::uint64_t width);

  std::int64_t numel() const { return begins_.back(); }

  /// Appends the extents of the elements [begin, begin + count).
  /// Requires: they exist.
  void append_extents(std::int64_t begin, std::int64_t count, std::vector<Extent>& out) const;

 private:
  std::vector<RankPiece> pieces_;
  std::vector<std::int64_t> begins_;  // one more than pieces_
  std::uint64_t width_;
};

/// Elements that each rank has of a parameter of `numel`, the padding of the last ranks counted.
/// Requires: world > 0.
std::int64_t partition_numel(std::int64_t numel, std::int64_t world);

/// Appends the extents of a parameter of `numel` elements; each rank's part of it begins `at`
/// elements into its piece. Padding behind the last element is in no extent. Requires: pieces of at
/// least at + partition_numel(numel, pieces.size()) elements.
void append_partitioned(std::span<const RankPiece> pieces, std::uint64_t width, std::int64_t at,
                        std::int64_t numel, std::vector<Extent>& out);

}  // namespace ckfs
