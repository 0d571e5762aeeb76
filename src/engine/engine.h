// FileLayout + ByteRange -> bytes, for many readers at once, within a budget of memory.
//
// Where bytes come from is decided by a pure function (read_plan.h) and done by the evaluator:
//   direct   target run = stored run, same bytes: straight from the source into the reply
//   decode   target run = stored run, another dtype or encoding: read into scratch, through a
//            kernel, into the reply
//   gather   strided (a transpose): computed in tiles that many requests share, by all workers
// Literal text that a request needs is rendered into a tile that others share; what is computed
// ahead renders its own.
//
// For a sequential reader the engine computes ahead: pieces of the file, or the next tile, ready
// before they are asked for, no further than he has earned (read_stream.h); and it has the source
// begin early enough with what it is slow to give (source_pace.h).
//
// Bytes depend on nothing but the layout and the source: not on threads, order of reads, request
// sizes, CPU, budget or tile size. Safe for concurrent use by several threads.
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
  /// Where dear tiles go that memory has no room for; nullptr: nowhere.
  std::shared_ptr<TileStore> tile_store = nullptr;
  /// Scatter and kernels: the plain twins, for tests.
  KernelSet kernels = KernelSet::Fast;
  /// Memory is given back where nobody read at three looks so far apart; less for tests.
  std::chrono::milliseconds look{2000};
  /// What else is given back then, by a thread of the engine's.
  std::function<void()> rest = {};
};

/// The size of tiles where Tier::Tile has `room` bytes, which are to hold two: the one that is read
/// and the next, and their scratch. A matrix that fits alone is not cut: computed late it costs
/// time, in parts it may cost several times its source bytes. `wanted`, where it is not 0
/// (EngineOptions::tile_bytes), is taken as it is, up to half of `room`.
TileBytes tile_bytes(std::uint64_t room, std::uint64_t wanted);

struct EngineStatistics {
  std::uint64_t requests = 0;
  std::uint64_t bytes_to_readers = 0;
  std::uint64_t tiles = 0;         // that were computed; pieces, texts, kept companions count, too
  std::uint64_t tiles_unread = 0;  // computed ahead, and let go before anybody was given them
  std::uint64_t hits = 0;
  std::uint64_t memory = 0;
  std::uint64_t memory_peak = 0;
  std::uint64_t memory_budget = 0;
};

class Engine {
 public:
  /// `source` must outlive the engine; `catalog` describes it. `pool` is the budget for tiles,
  /// pieces, replies, scratch and rendered text; the engine gives back what it keeps there when
  /// nobody has read for some seconds.
  Engine(std::shared_ptr<const Catalog> catalog, ByteSource& source,
         std::shared_ptr<BufferPool> pool, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// A new reader of `file`. The layout is kept alive by the stream; the stream must not outlive
  /// the engine.
  std::shared_ptr<ReadStream> open_stream(std::shared_ptr<const FileLayout> file,
                                          ReadOptions options = {});

  /// The bytes of `range` of the stream's file. They may hold memory of the budget (Tier::Reply or
  /// Tile) until the last copy of the result is gone: who keeps results while he asks for more may
  /// hold at most a quarter of the budget, with the size of the next one, or waits for himself
  /// (what he holds may be of Tier::Tile, and a tile may need all of its share). Each result counts
  /// as its size, rounded up to whole MiB: a short one may lie in a piece. Errors: Io, Stale,
  /// Corrupt, Unsupported (a chunk or an inner file in a form that is not known), OutOfMemory (what
  /// the budget can never hold, at once; or the system), Internal (what a computation throws),
  /// Stopped (this thread is asked to, base/stop.h; what was under way ahead of the reader stops,
  /// too).
  /// Requires: range lies within the file.
  Result<Bytes> read(ReadStream& stream, ByteRange range);

  /// The same into the caller's buffer of range.size() bytes.
  Result<void> read(ReadStream& stream, ByteRange range, std::span<std::byte> out);

  EngineStatistics statistics() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckfs
