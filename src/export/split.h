// How a view is cut into the parts that several processes write. A pure function of the view and
// the number of processes, the same on every host, so that they need not talk to each other.
//
// The parts cost about the same: a byte costs one to write, and one more for each stored byte that
// is decoded, cast or gathered for it. A cut lies where a tensor, or a chunk of one, begins, as
// long as that costs less than kBorderShare of a part; otherwise inside of one. It is a multiple of
// kSplitUnit in its file, or the file's end, so no two processes write to one page of a file.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ckfs/checkpoint.h>

#include "base/byte_range.h"
#include "base/units.h"
#include "catalog/catalog.h"
#include "expr/tensor_expr.h"

namespace ckfs {

inline constexpr std::uint64_t kSplitUnit = 4_KiB;
/// A cut moves to a border by at most 1 / 400 of a part, so parts differ by about 1 / 200.
inline constexpr std::uint64_t kBorderShare = 400;
/// A cut in a large tensor that is gathered is a multiple of this: two processes would both compute
/// the tile in which the cut lies.
inline constexpr std::uint64_t kTiledUnit = 16_MiB;

/// A range of a file of the view that is to be written.
struct ExportStep {
  std::size_t file = 0;  // index in View::files()
  ByteRange range;

  bool operator==(const ExportStep&) const = default;
};

/// A run of a file's bytes that cost the same each: a tensor, a chunk, or bytes between them.
struct CostSpan {
  std::uint64_t end = 0;   // the next begins there
  std::uint64_t cost = 0;  // of all its bytes
  bool tiled = false;
};

/// A file of `spans.back().end` bytes. An empty file has no spans.
struct FileCost {
  std::vector<CostSpan> spans;

  std::uint64_t size() const { return spans.empty() ? 0 : spans.back().end; }
  std::uint64_t cost() const;
};

enum class Split : std::uint8_t {
  Ranges,   // anywhere, by the rules above
  Weights,  // all that is made of a quantized weight together (weight_shares.h)
  Files,    // whole files, for an OUT that takes a file's bytes only in order
};

/// The cost of writing all bytes of a tensor, or of a chunk of one.
std::uint64_t cost_of(const Catalog& catalog, const TensorExpr& expr);

/// The cost of writing each file of the view, in the order of View::files(). Takes up to 48 bytes
/// for each tensor, chunk and text between them, and for a while the layouts of some files. Errors:
/// OutOfMemory.
Result<std::vector<FileCost>> file_costs(const View& view);

/// The steps of each of `parts` processes, which cover every byte once. Requires: parts > 0; not
/// Split::Weights.
std::vector<std::vector<ExportStep>> split_steps(std::span<const FileCost> files, unsigned parts,
                                                 Split split);

}  // namespace ckfs
