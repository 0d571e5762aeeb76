// Segments are stored by where they begin alone, each ending where the next begins, so that there
// is nothing that could leave a gap or overlap.
#include "container/file_layout.h"

#include <algorithm>
#include <atomic>

namespace ckfs {
std::uint64_t new_serials(std::size_t count) {
  // Of the process and not of an engine: a cache may outlive a view, and tests have several.
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(count, std::memory_order_relaxed);
}

void FileLayout::finish() {
  cuts.clear();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const ByteRange place = range(i);
    if (segments[i].kind != Segment::Kind::Tensor) continue;
    if (place.size() < kLargeTensor && !quantized(segments[i].id)) continue;
    if (cuts.empty() || cuts.back() != place.begin) cuts.push_back(place.begin);
    cuts.push_back(place.end);
  }
  cuts.shrink_to_fit();
}

std::optional<QuantizedPart> FileLayout::quantized(std::uint32_t id) const {
  if (definition == nullptr || (!chunks.empty() && !chunks[id].quantized)) return std::nullopt;
  const ModelTensor& made = definition->tensors[tensor(id)];
  if (made.weight == ModelTensor::kNone) return std::nullopt;
  return QuantizedPart{&definition->weights[made.weight], made.output};
}

std::vector<const TensorExpr*> FileLayout::sources(std::uint32_t id) const {
  const std::optional<QuantizedPart> part = quantized(id);
  if (!part) return {&expr(id)};
  std::vector<const TensorExpr*> all{&part->weight->values};
  if (part->weight->beside) all.push_back(part->weight->beside.get());
  return all;
}

ByteRange FileLayout::tensor_at(std::uint64_t offset) const {
  CKFS_CHECK(offset < size);
  const auto after = std::ranges::upper_bound(cuts, offset);
  return {after == cuts.begin() ? 0 : *(after - 1), after == cuts.end() ? size : *after};
}

ByteRange FileLayout::piece_at(std::uint64_t offset) const {
  const std::uint64_t begin = offset / kPieceBytes * kPieceBytes;
  return tensor_at(offset).intersect({begin, begin + kPieceBytes});
}

ByteRange FileLayout::range(std::size_t index) const {
  CKFS_CHECK(index < segments.size());
  const std::uint64_t end = index + 1 < segments.size() ? segments[index + 1].begin : size;
  return {segments[index].begin, end};
}

std::size_t FileLayout::find(std::uint64_t offset) const {
  CKFS_CHECK(offset < size);
  const auto after = std::ranges::upper_bound(segments, offset, {}, &Segment::begin);
  return static_cast<std::size_t>(after - segments.begin()) - 1;
}

std::size_t FileLayout::bytes() const {
  std::size_t exprs = 0;
  for (const Chunk& chunk : chunks) exprs += chunk.expr.bytes();
  return sizeof(*this) + exprs + chunks.capacity() * sizeof(Chunk) + render_bytes +
         path.capacity() + segments.capacity() * sizeof(Segment) +
         (literals.capacity() + cuts.capacity()) * sizeof(std::uint64_t);
}

}  // namespace ckfs
