// Segments of a file whose tensors lie between short texts. Many texts are one literal, and its
// pieces lie in the file where they belong.
#pragma once

#include <cstdint>

#include "base/byte_range.h"
#include "container/file_layout.h"

namespace ckfs {

/// The segments of a file; some literals are split over several.
class LiteralSegments {
 public:
  explicit LiteralSegments(FileLayout& layout) : layout_(layout) {}

  /// Bytes of literal `id`, from `inside`, at `range` of the file.
  void literal(std::uint32_t id, std::uint64_t inside, ByteRange range) {
    if (range.empty()) return;
    if (!layout_.segments.empty()) {
      const Segment& last = layout_.segments.back();
      const bool continues = last.kind == Segment::Kind::Literal && last.id == id &&
                             last.source_offset + (range.begin - last.begin) == inside;
      if (continues) return;
    }
    layout_.segments.push_back({range.begin, inside, id, Segment::Kind::Literal});
  }

  void tensor(std::uint32_t id, ByteRange range) {
    if (!range.empty()) layout_.segments.push_back({range.begin, 0, id, Segment::Kind::Tensor});
  }

 private:
  FileLayout& layout_;
};

}  // namespace ckfs
