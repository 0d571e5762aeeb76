// A box is halved along the loop that reaches farthest until what is left of it lies in one chunk,
// or can be halved no more. So chunks that a box steps over are not among its needs, and a grid of
// thousands of them is not looked at element by element.
#include "expr/chunk_needs.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

namespace ckfs {
namespace {

class ChunkNeedsFinder {
 public:
  explicit ChunkNeedsFinder(const Catalog& catalog) : catalog_(catalog) {}

  void add(const Box& box) {
    const Storage& storage = catalog_.storage(box.source);
    if (!storage.in_chunks) return;
    std::vector<Loop> loops = box.loops;
    std::ranges::sort(loops, std::ranges::greater{},
                      [](const Loop& loop) { return std::abs(loop.source_stride); });
    halve(storage, box.source_offset, loops);
  }

  ChunkNeeds needs;

 private:
  void halve(const Storage& storage, std::int64_t offset, std::span<Loop> loops) {
    while (!loops.empty() && (loops[0].count == 1 || loops[0].source_stride == 0)) {
      loops = loops.subspan(1);
    }
    std::int64_t low = offset, high = offset;
    for (const Loop& loop : loops) {
      (loop.source_stride < 0 ? low : high) += (loop.count - 1) * loop.source_stride;
    }
    const ByteRange bytes{byte_at(storage, low), byte_at(storage, high + 1)};
    const auto extents = storage.extents_in(bytes);
    if (extents.size() > 1 && !loops.empty()) {
      const Loop whole = loops[0];
      loops[0].count = whole.count / 2;
      halve(storage, offset, loops);
      const std::int64_t first = offset + whole.count / 2 * whole.source_stride;
      loops[0].count = whole.count - whole.count / 2;
      halve(storage, first, loops);
      loops[0] = whole;
      return;
    }
    for (const Extent& extent : extents) add(extent, bytes);
  }

  void add(const Extent& extent, ByteRange bytes) {
    if (!is_chunk(extent.file)) return;
    const SourceChunk chunk = catalog_.chunks().chunk(extent.file);
    if (chunk.kind == SourceChunk::Kind::Absent || chunk.array->codecs->identity()) return;
    const ByteRange here = bytes.intersect({extent.begin, extent.begin + extent.nbytes});
    const std::uint64_t begin = extent.offset + (here.begin - extent.begin);
    const auto [known, is_new] = needs.try_emplace(extent.file, begin, begin + here.size());
    if (is_new) return;
    known->second.begin = std::min(known->second.begin, begin);
    known->second.end = std::max(known->second.end, begin + here.size());
  }

  /// Where an element begins; the elements of arrays in chunks have whole bytes.
  static std::uint64_t byte_at(const Storage& storage, std::int64_t element) {
    return static_cast<std::uint64_t>(element) *
           (storage.nbytes() / static_cast<std::uint64_t>(storage.numel));
  }

  const Catalog& catalog_;
};

}  // namespace

ChunkNeeds chunk_needs(const Catalog& catalog, std::span<const Box> boxes) {
  ChunkNeedsFinder finder(catalog);
  for (const Box& box : boxes) {
    if (!box.is_constant()) finder.add(box);
  }
  return std::move(finder.needs);
}

}  // namespace ckfs
