// How a view is cut into the parts that several processes write: a pure function of the view and of
// how many they are, the same on every host, so that nobody has to be asked.
//
// The parts cost the same, about: a byte costs one to write, and one more for each stored byte that
// has to be decoded, cast or gathered for it. They are cut where tensors, or chunks of them, begin,
// as long as that costs less than kBorderShare of a part; else inside of one. A cut is a multiple
// of kSplitUnit in its file, or the file's end: no two processes write to one page, of 4 KiB, of a
// file.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ckfs/checkpoint.h>

#include "base/byte_range.h"
#include "base/units.h"

namespace ckfs {

inline constexpr std::uint64_t kSplitUnit = 4_KiB;
/// A part may be larger or smaller than the others by about this share, 1 / 200 of one, for the
/// sake of a border.
inline constexpr std::uint64_t kBorderShare = 400;
/// Tensors that are gathered are computed in tiles, which two processes would both compute: no more
/// cuts than this in one that is larger.
inline constexpr std::uint64_t kTiledUnit = 16_MiB;

/// Something that is written: a range of a file of the view.
struct ExportStep {
  std::size_t file = 0;  // index in View::files()
  ByteRange range;

  bool operator==(const ExportStep&) const = default;
};

/// A run of a file's bytes of which each costs the same: a tensor, a chunk, or what lies between.
struct CostSpan {
  std::uint64_t end = 0;   // the next begins there
  std::uint64_t cost = 0;  // of all its bytes
  bool tiled = false;
};

/// A file of `spans.back().end` bytes; empty ones have no spans.
struct FileCost {
  std::vector<CostSpan> spans;

  std::uint64_t size() const { return spans.empty() ? 0 : spans.back().end; }
  std::uint64_t cost() const;
};

enum class Split : std::uint8_t {
  Ranges,  // anywhere, by the rules above
  Files,   // whole files: where OUT takes a file's bytes only in order
};

/// What writing each file of the view costs, in the order of View::files(). Costs up to 48 bytes
/// for each tensor, chunk and text between them, and for a while as much as the layouts of some
/// files. Errors: OutOfMemory.
Result<std::vector<FileCost>> file_costs(const View& view);

/// The steps of each of `parts` processes, which cover every byte once. Requires: parts > 0.
std::vector<std::vector<ExportStep>> split_steps(std::span<const FileCost> files, unsigned parts,
                                                 Split split);

}  // namespace ckfs
