// Ranges of layouts as bytes: carries out plans and computes pieces and tiles, in memory of the
// budget. engine.cc decides what is computed, when, and for which reader.
//
// Safe for concurrent use by several threads. Bytes depend on the layout and the source alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/byte_range.h"
#include "base/byte_source.h"
#include "base/error.h"
#include "container/file_layout.h"
#include "engine/gather.h"
#include "engine/read_plan.h"
#include "engine/source_pace.h"
#include "engine/workers.h"
#include "memory/buffer_pool.h"
#include "memory/tile_cache.h"
#include "tensor/kernel.h"

namespace ckfs {

/// How bytes are wanted; changes none of them.
struct Want {
  /// The reader is sequential: tiles are computed whole and kept for it. So are companions that a
  /// few elements need as a whole.
  bool sequential = false;
  /// ByteSource::read_once() and map_once() instead of read() and map().
  bool once = false;
  /// They will be in the view's page cache: read as with `once`, unless other readers use the same
  /// pages of the source.
  bool delivered = false;
  /// Long reads of pieces are padded (ReadRequest::padded).
  bool padded = false;
  /// The whole file will be read, by a program that asks for codes before their scales: scales are
  /// made with the codes and kept, and no value is read for them again.
  bool keep_scales = false;
};

class Evaluator {
 public:
  /// Keeps references to all arguments but the catalog. That only says how much memory is needed;
  /// each file refers to its own.
  Evaluator(const Catalog& catalog, ByteSource& source, BufferPool& pool, TileCache& cache,
            Workers& workers, TileBytes tile_bytes, KernelSet kernels);

  /// The most scratch of one thread that gathers, unless one element needs more (least_staging()).
  static constexpr std::size_t kMostStaging = std::size_t{2} << 20;

  /// The range that is computed together with the byte at `offset`: the tile of a large tensor that
  /// is gathered, else the layout's piece.
  ByteRange unit_at(const FileLayout& file, std::uint64_t offset) const;

  /// Bytes `range` of the file into `out`. Waits for memory of Tier::Tile. Errors: those of the
  /// source; Corrupt (a companion that contradicts itself), OutOfMemory, Internal.
  Result<void> fill(const FileLayout& file, ByteRange range, std::span<std::byte> out, Want want);

  /// Bytes `range` as a tile of their own; OutOfMemory instead of waiting for memory of Tier::Tile.
  /// Requires: the range has no part of a large gathered tensor, except tiles that are pieces
  /// (unit_at()).
  Result<Tile> piece(const FileLayout& file, ByteRange range, Want want);

  /// Several such pieces, in ascending order, with one read of the source for as many as there is
  /// memory for; `ready` gets each with its number as soon as it is computed. OutOfMemory: there is
  /// no memory for any of the rest, or one has a part of a literal longer than kPieceBytes.
  using Ready = std::function<void(std::size_t number, Tile tile)>;
  Result<void> pieces(const FileLayout& file, std::span<const ByteRange> ranges, Want want,
                      const Ready& ready);

  /// The reader of the tile of a gathered tensor that holds byte `offset` of the file is past it.
  void retire_tile(const FileLayout& file, std::uint64_t offset);
  /// The same, and no other reader is expected.
  void drop_tile(const FileLayout& file, std::uint64_t offset);

  /// Computes and caches the tile of a gathered tensor that holds byte `offset` of the file. Does
  /// nothing if another thread has begun it, if there is no memory for it now, or if `wanted()` is
  /// false: it says whether the tile will still be read, and is asked when others see this
  /// computation. (A tile from the store is loaded without asking, and retired at once if it is not
  /// wanted.) Errors are not kept: the reader meets them itself.
  void make_tile(const FileLayout& file, std::uint64_t offset, Want want,
                 const std::function<bool()>& wanted);

  /// The source's bytes that bytes `range` of the file are made of, for a hint. For gathered
  /// tensors: those of the whole tiles that begin in `range`, up to some thousand ranges.
  std::vector<FileRange> source_ranges(const FileLayout& file, ByteRange range) const;
  /// Subranges of `range` that are read without padding: all but large tensors, gathered tensors,
  /// and those from files that are not read past the page cache.
  std::vector<ByteRange> not_padded(const FileLayout& file, ByteRange range) const;

  /// Checks that the files are still those that were opened: only then may bytes computed earlier
  /// be lent. Errors: Stale (then all tiles are forgotten), Io.
  Result<void> verify(std::span<const FileId> files);

  const SourcePace& pace() const { return pace_; }

 private:
  /// Where a byte of a gathered tensor lies: tile `index` of `tensor`, which holds `tile` of its
  /// bytes.
  struct TilePosition {
    std::uint32_t tensor = 0;
    std::uint64_t index = 0;
    ByteRange tile;
  };
  enum class Patience : std::uint8_t { Wait, Refuse };

  TileKey tile_at(const FileLayout& file, std::uint64_t offset) const;
  TilePosition place_of(const FileLayout& file, std::uint32_t tensor, std::uint64_t byte) const;
  static TileKey key_of(const FileLayout& file, const TilePosition& place);
  Result<void> copy_literal(const FileLayout& file, const LiteralPart& part,
                            std::span<std::byte> out);
  Result<void> copy_gathered(const FileLayout& file, const GatherPart& part,
                             std::span<std::byte> out, Want want);
  Result<Tile> gathered(const FileLayout& file, std::uint32_t tensor, ByteRange bytes, Want want,
                        Patience patience);
  /// What a quantizer makes.
  Result<Tile> quantized(const FileLayout& file, std::uint32_t tensor, ByteRange bytes, Want want,
                         Patience patience);
  Result<float> maximum_of(const FileLayout& file, const QuantizedPart& part, Want want,
                           Patience patience);
  class ValueReads;
  class Kept;
  template <typename Use>
  Result<std::vector<FileId>> each_slab(std::span<const ElementRange> slabs, std::size_t room,
                                        std::span<std::byte> first, Use use);
  std::uint64_t begin_of(const FileLayout& file, std::uint32_t tensor, ByteRange bytes) const;
  Result<std::vector<FileId>> gather_into(const GatherPlan& plan, std::span<std::byte> staging,
                                          std::span<std::byte> out, Want want);
  /// A plan and the memory for its bytes.
  struct Task {
    const ReadPlan* plan = nullptr;
    std::span<std::byte> out;
    bool padded = false;  // ReadRequest::padded, of the plan's only part
  };
  using Done = std::function<void(std::size_t number, const std::vector<FileId>& files)>;
  Result<void> carry_out(std::span<const Task> tasks, const RunReads& reads,
                         std::span<std::byte> scratch, Want want, const Done& done);
  static std::optional<std::size_t> padding_of(const ReadPlan& plan, Want want,
                                               const Buffer& buffer);
  Result<std::size_t> scratch_of(const FileLayout& file, const ReadPlan& plan) const;
  Result<std::vector<FileId>> fill_rest(const FileLayout& file, const Task& task,
                                        std::span<std::byte> scratch, Want want);
  Result<std::vector<Buffer>> memory(std::span<const std::size_t> sizes, Patience patience);
  /// nullopt: there is none now. A helper neither waits for memory nor fails the work, which goes
  /// on without it.
  std::optional<Buffer> memory_of_helper(std::size_t size);
  GatherPlan gather_plan(const FileLayout& file, std::uint32_t tensor, ByteRange bytes) const;

  /// The source; measures how long it takes, and checks that it is still the same.
  class Measured;

  ByteSource& source_;
  BufferPool& pool_;
  TileCache& cache_;
  Workers& workers_;
  const TileBytes tile_bytes_;
  const std::size_t staging_bytes_;
  const KernelSet kernels_;
  SourcePace pace_;
};

}  // namespace ckfs
