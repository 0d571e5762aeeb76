// FileLayout + ByteRange -> bytes, for many readers at once, within a budget of memory.
//
// A pure function (read_plan.h) decides where bytes come from; the evaluator does the work:
//   direct   target run = stored run, same bytes: straight from the source into the reply
//   decode   target run = stored run, another dtype or encoding: read into scratch, through a
//            kernel, into the reply
//   gather   strided (a transpose): computed in tiles that many requests share, by all workers
// Literal text that a request needs is rendered into a tile that others share; work ahead renders
// its own.
//
// For a sequential reader the engine computes ahead: pieces of the file, or the next tile, ready
// before they are asked for, no further than the reader has earned (read_stream.h). It tells a slow
// source early enough what it will read (source_pace.h).
//
// Bytes depend on the layout and the source only: not on threads, order of reads, request sizes,
// CPU, budget or tile size. Safe for concurrent use by several threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include <ckfs/types.h>

#include "base/byte_range.h"
#include "base/byte_source.h"
#include "base/error.h"
#include "container/file_layout.h"
#include "engine/gather.h"
#include "engine/read_stream.h"
#include "memory/buffer_pool.h"
#include "memory/tile_store.h"
#include "tensor/kernel.h"

namespace ckfs {

struct EngineOptions {
  /// Threads that compute ahead of readers and help with tiles; 0: one for each CPU. Where the
  /// source answers late there are more (Workers::Kind::Waits).
  unsigned threads = 0;
  /// Bytes of a tile; 0: chosen from the budget.
  std::uint64_t tile_bytes = 0;
  /// Where evicted tiles go that are expensive to recompute; nullptr: nowhere.
  std::shared_ptr<TileStore> tile_store = nullptr;
  /// Scatter and kernels: the plain twins, for tests.
  KernelSet kernels = KernelSet::Fast;
  /// Memory is given back when three looks, so far apart, find no reader. Tests set less.
  std::chrono::milliseconds look{2000};
  /// Called then on a thread of the engine, to give back other memory.
  std::function<void()> rest = {};
};

/// The size of tiles where Tier::Tile has `room` bytes. These hold two tiles (the one that is read,
/// and the next) and their scratch. A matrix that fits alone is not cut: as one tile it may come
/// late, in parts it may cost several times its source bytes. A `wanted` that is not 0
/// (EngineOptions::tile_bytes) is used as it is, up to half of `room`.
TileBytes tile_bytes(std::uint64_t room, std::uint64_t wanted);

struct EngineStatistics {
  std::uint64_t requests = 0;
  std::uint64_t bytes_to_readers = 0;
  std::uint64_t tiles = 0;         // tiles, pieces, texts and kept companions computed
  std::uint64_t tiles_unread = 0;  // among them, evicted unread
  std::uint64_t hits = 0;
  std::uint64_t memory = 0;
  std::uint64_t memory_peak = 0;
  std::uint64_t memory_budget = 0;
};

class Engine {
 public:
  /// `source` must outlive the engine; `catalog` describes it. `pool` is the budget for tiles,
  /// pieces, replies, scratch and rendered text; the engine gives back what it keeps there after
  /// some seconds without a reader.
  Engine(std::shared_ptr<const Catalog> catalog, ByteSource& source,
         std::shared_ptr<BufferPool> pool, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// A new reader of `file`. The layout is kept alive by the stream; the stream must not outlive
  /// the engine.
  std::shared_ptr<ReadStream> open_stream(std::shared_ptr<const FileLayout> file,
                                          StreamOptions options = {});

  /// The bytes of `range` of the stream's file. They may hold memory of the budget (Tier::Reply or
  /// Tile) until the last copy of the result is destroyed. A caller that keeps results while it
  /// reads on may hold at most a quarter of the budget, the next result included. Beyond that,
  /// read() may wait for the caller's own results (they may be of Tier::Tile, and a tile may need
  /// all of its share). Each result counts as its size, rounded up to whole MiB: a short one may
  /// lie in a piece. Errors: Io, Stale, Corrupt, Unsupported (a chunk or an inner file in an
  /// unknown form), OutOfMemory (at once: more than the budget can ever hold; or the system has no
  /// more), Internal (an exception of a computation), Stopped (this thread is asked to stop,
  /// base/stop.h; work ahead of the reader stops, too). Requires: range lies within the file.
  Result<Bytes> read(ReadStream& stream, ByteRange range);

  /// The same into the caller's buffer of range.size() bytes.
  Result<void> read(ReadStream& stream, ByteRange range, std::span<std::byte> out);

  EngineStatistics statistics() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckfs
