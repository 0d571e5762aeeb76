// The chunks in which an array is stored: equal boxes, each with bytes of its own. A pure function
// of shapes and of the array's sources.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ckfs {

/// The limits of a chunk's size, as near as divisors of the shape allow (choose_chunk()); a
/// device's whole share may be smaller. Readers take one chunk at a time, whole.
inline constexpr std::uint64_t kMostChunkBytes = std::uint64_t{64} << 20;
inline constexpr std::uint64_t kLeastChunkBytes = std::uint64_t{4} << 20;

/// What an array is made of, by its dimensions.
struct ArraySource {
  /// The extents of a cell of the grid on which source tensors, and chunks of them that are decoded
  /// as a whole, begin. Divides the shape. A tensor may have several cells.
  std::vector<std::int64_t> cell;
  /// The order of a cell's dimensions in the source, the slowest first; those along which a cell
  /// has one element come before.
  std::vector<std::int64_t> order;
  /// Where cells follow each other in the source's files: dimensions with several cells, the
  /// slowest first.
  std::vector<std::int64_t> cell_order;
  /// Chunks whose ends are multiples of this share no stored bytes with others.
  std::vector<std::int64_t> granule;
  std::int64_t bits = 8;  // stored for each element, about

  bool operator==(const ArraySource&) const = default;
};

/// A chunk, and the cost of choosing it: numbers that were tried, and 16 for each chunk that was
/// compared. At most some millions, for shapes that no model has.
struct ChosenChunk {
  std::vector<std::int64_t> shape;
  std::uint64_t steps = 0;
};

/// Divisors of `shape`, by these rules, the first that decides:
///
///   no chunk crosses a border of `split`, the number of equal parts along each dimension (empty:
///   one); 4 to 64 MiB, or as near as divisors come, in whole multiples (up to twice as large is
///   as near as down to half); the fewest source tensors in a chunk; whole granules; the longest
///   runs of source bytes; the fewest chunks; the shortest along the slowest of `cell_order`.
///
/// (64 MiB is `most`; where that is less than 4 MiB, it stands for both.) A shape without
/// elements has chunks of one element, and none of them.
/// Requires: split divides shape, of at most 2^59 elements; source is of that rank; most > 0.
ChosenChunk choose_chunk(std::span<const std::int64_t> shape, std::uint64_t width,
                         std::span<const std::int64_t> split, const ArraySource& source,
                         std::uint64_t most = kMostChunkBytes);

}  // namespace ckfs
