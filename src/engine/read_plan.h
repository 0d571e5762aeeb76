// The work for a range of a target file's bytes: a pure function of layout and range.
//
// A plan covers the range exactly once, in order, and does not depend on earlier reads. Its cost
// depends on the range alone, however many boxes its tensor or extents its storages have.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "base/byte_range.h"
#include "base/byte_source.h"
#include "container/file_layout.h"
#include "engine/run_decoder.h"
#include "expr/tensor_expr.h"

namespace ckfs {

/// Bytes of literal text number `literal`, from `offset`.
struct LiteralPart {
  std::uint32_t literal = 0;
  std::uint64_t offset = 0;
};

/// Bytes of a source file, unchanged. With `quiet` they are whole elements of `dtype`, and each NaN
/// becomes the quiet one of its sign (quiet_nans()).
struct CopyPart {
  FileId file = 0;
  std::uint64_t offset = 0;
  DType dtype = DType::U8;
  bool quiet = false;
};

/// A run, decoded and taken through its steps. The part starts `skip` bytes into the first element.
struct DecodePart {
  ElementRun run;  // its program is the layout's
  std::uint64_t skip = 0;
};

/// Bytes [begin, ...) of a tensor whose boxes are strided, or that a quantizer makes: the engine
/// computes them in tiles.
struct GatherPart {
  std::uint32_t tensor = 0;  // as segments of the layout number it (FileLayout::expr())
  std::uint64_t begin = 0;   // byte in the tensor
};

/// An element of `width` bytes (as Box::source_offset has it) again and again, padding too. The
/// part starts `skip` bytes into the first one.
struct ConstantPart {
  std::int64_t bits = 0;
  std::uint64_t width = 1;
  std::uint64_t skip = 0;
};

struct PlanPart {
  ByteRange out;  // within the planned range: 0 is its first byte
  std::variant<LiteralPart, CopyPart, DecodePart, GatherPart, ConstantPart> what;
};

/// All that a read needs to know, found once.
struct ReadPlan {
  std::vector<PlanPart> parts;
  RunReads reads;  // the reads of the decoded parts, all in one batch

  /// Bytes of scratch that carrying it out needs.
  std::size_t scratch() const { return reads.staging(); }
};

/// Plans bytes `range` of `layout`. Requires: range lies within the file.
ReadPlan plan_read(const FileLayout& layout, ByteRange range);

/// The reads of the decoded parts of several plans; shared bytes are read once.
RunReads reads_of(const Catalog& catalog, std::span<const ReadPlan> plans,
                  RunReads::Padding padding = RunReads::Padding::No);

/// The source bytes that a plan will read by itself, near ones joined: for a hint
/// (ByteSource::will_need). Bytes of gathered parts are not among them (GatherPlan::ranges).
std::vector<FileRange> ranges_of(const ReadPlan& plan);

/// The shortest run of bytes in the target for which reading it by itself beats a tile: below it
/// the cost of a request exceeds that of the bytes (measured: pread of 4 KiB pieces reaches 3.6
/// GB/s, of 1 KiB 1.35).
inline constexpr std::uint64_t kShortestRun = 4096;

/// Whether the tensor has to be computed in tiles: some box has runs shorter than kShortestRun, or
/// the whole of a storage is packed along another dimension than its last, so that far rows share
/// words. Known since the expression was made: no box is looked at.
bool needs_tiles(const Catalog& catalog, const TensorExpr& expr);

/// The same of a tensor of a file: also what a quantizer makes is computed in tiles.
bool needs_tiles(const FileLayout& file, std::uint32_t tensor);

}  // namespace ckfs
