// What has to be done for a range of a target file's bytes: a pure function of layout and range.
//
// A plan covers the range exactly once, in order, and does not depend on anything that came before.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "base/byte_range.h"
#include "base/byte_source.h"
#include "container/file_layout.h"
#include "expr/tensor_expr.h"

namespace ckfs {

/// Bytes of literal text number `literal`, from `offset`.
struct LiteralPart {
  std::uint32_t literal = 0;
  std::uint64_t offset = 0;
};

/// Bytes of a source file, unchanged.
struct CopyPart {
  FileId file = 0;
  std::uint64_t offset = 0;
};

/// The elements [first, first + count) of a storage, decoded and taken through the steps, of which
/// the part starts `skip` bytes into the first.
struct DecodePart {
  StorageId storage = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::uint64_t skip = 0;
  const Program* program = nullptr;  // of the layout's expression; nullptr: no step
};

/// Bytes [begin, ...) of a tensor whose boxes are strided: the engine computes them in tiles.
struct GatherPart {
  std::uint32_t tensor = 0;  // in the definition
  std::uint64_t begin = 0;   // byte in the tensor
};

/// Padding.
struct ZeroPart {};

struct PlanPart {
  ByteRange out;  // within the planned range: 0 is its first byte
  std::variant<LiteralPart, CopyPart, DecodePart, GatherPart, ZeroPart> what;
};

using ReadPlan = std::vector<PlanPart>;

/// Plans bytes `range` of `layout`. Requires: range lies within the file.
ReadPlan plan_read(const FileLayout& layout, ByteRange range);

/// The dtype after the steps of `program` on a value of dtype `value`.
DType result_dtype(DType value, const Program* program);

/// The shortest run of bytes in the target for which reading it by itself beats a tile: below it
/// the cost of a request exceeds that of the bytes (fuse-perf.md E: pread of 4 KiB pieces reaches
/// 3.6 GB/s, of 1 KiB 1.35).
inline constexpr std::uint64_t kShortestRun = 4096;

/// Whether the tensor has to be computed in tiles: some box has runs shorter than kShortestRun.
bool needs_tiles(const TensorExpr& expr);

/// `files` in order, each once.
std::vector<FileId> sorted_once(std::vector<FileId> files);

/// The files that a batch of reads touches, in order, each once: those on which what is made of it
/// depends.
std::vector<FileId> files_of(std::span<const ReadRequest> batch);

/// `ranges` by file and offset; those that are at most a page apart are joined, so that a hint names
/// no page twice.
std::vector<FileRange> joined(std::vector<FileRange> ranges);

/// Calls `use(file, offset, nbytes)` for the pieces of bytes `range` of a storage, in order.
/// Requires: range lies within the storage.
template <typename Use>
void for_each_extent(const Storage& storage, ByteRange range, Use use) {
  std::uint64_t begin = 0;
  for (const Extent& extent : storage.extents) {
    const ByteRange here = range.intersect({begin, begin + extent.nbytes});
    if (!here.empty()) use(extent.file, extent.offset + (here.begin - begin), here.size());
    begin += extent.nbytes;
    if (begin >= range.end) break;
  }
}

}  // namespace ckfs
