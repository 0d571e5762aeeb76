// Byte positions in a target file: which bytes are literal text, which come from tensors, which
// from a source file. Sizes are exact before any tensor byte is read.
//
// A FileLayout is immutable and safe for concurrent use. It costs 24 bytes a tensor, in a torch
// file 64, and 16 more for a large tensor; a chunk of a tensor costs its expression. Literal text
// is measured when the layout is made and rendered when it is read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/byte_range.h"
#include "base/error.h"
#include "view/view.h"

namespace ckfs {

/// A run of a target file's bytes, up to the next segment or the end of the file.
struct Segment {
  enum class Kind : std::uint8_t {
    Literal,  // text number `id` of the layout, from `source_offset`
    Tensor,   // all bytes of expr(id)
    File,     // bytes of source file `id`, from `source_offset`
    Zero,     // padding
  };
  std::uint64_t begin = 0;          // in the target file
  std::uint64_t source_offset = 0;  // File and Literal only
  std::uint32_t id = 0;
  Kind kind = Kind::Zero;
};

/// `count` serial numbers of layouts that no call in this process gave before: the first of them.
std::uint64_t new_serials(std::size_t count);

/// Tensors of fewer bytes are read together with their neighbours.
inline constexpr std::uint64_t kLargeTensor = std::uint64_t{256} << 10;
/// The largest piece that is read or computed ahead at once.
inline constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

/// The part of a tensor in this file, where tensors are stored in parts: one part, or several one
/// after another.
struct Chunk {
  TensorExpr expr;
  std::uint32_t tensor = 0;  // number in Definition::tensors
  /// Of a tensor that a quantizer makes: all of it.
  bool quantized = false;
};

/// A tensor that a quantizer makes.
struct QuantizedPart {
  const QuantizedTensor* weight = nullptr;
  std::size_t output = 0;

  const QuantizedOutput& facts() const { return weight->quantizer->outputs()[output]; }
};

struct FileLayout {
  std::string path;        // within the view
  std::uint64_t size = 0;  // bytes
  /// Names the file in caches of this process, where two files may have one inode by chance.
  std::uint64_t serial = new_serials(1);
  std::shared_ptr<const Definition> definition;  // the tensors that segments name
  std::vector<Segment> segments;                 // by begin, from 0, without gaps
  /// The chunks that the ids of Kind::Tensor segments number; empty: the ids number the
  /// definition's tensors.
  std::vector<Chunk> chunks;
  std::vector<std::uint64_t> literals;  // bytes of each text
  /// Makes text `literal`: literals[literal] bytes, always the same. Safe for concurrent use; keeps
  /// alive what it needs.
  std::function<std::string(std::uint32_t literal)> render;
  std::size_t render_bytes = 0;  // memory that only render() keeps
  /// Where tensors of kLargeTensor bytes and more, and all that quantizers make, begin and end;
  /// ascending, each once. What a quantizer makes may need a thousand times its bytes, so it is
  /// read together with nothing else.
  std::vector<std::uint64_t> cuts;

  /// Computes what depends on the segments and the tensors alone, once for all reads. Requires: all
  /// members above are final.
  void finish();

  /// The memory that it takes.
  std::size_t bytes() const;
  /// The model tensor that segments of Kind::Tensor with that id are of.
  std::uint32_t tensor(std::uint32_t id) const { return chunks.empty() ? id : chunks[id].tensor; }
  /// The expression that the file shows of it.
  const TensorExpr& expr(std::uint32_t id) const {
    return chunks.empty() ? definition->tensors[id].expr : chunks[id].expr;
  }

  /// The weight and output where a quantizer makes the tensor; nullopt: it is its expression.
  std::optional<QuantizedPart> quantized(std::uint32_t id) const;
  /// The expressions that the tensor is made of: its own, or those of the weight.
  std::vector<const TensorExpr*> sources(std::uint32_t id) const;

  /// The bytes of segment `index`.
  ByteRange range(std::size_t index) const;
  /// The segment that holds byte `offset`. Requires: offset < size.
  std::size_t find(std::uint64_t offset) const;
  /// The large tensor that holds byte `offset`, or the run of other bytes between two large ones.
  /// Requires: offset < size.
  ByteRange tensor_at(std::uint64_t offset) const;
  /// The part of tensor_at(offset) in the same piece [k, k + 1) * kPieceBytes of the file.
  ByteRange piece_at(std::uint64_t offset) const;
};

}  // namespace ckfs
