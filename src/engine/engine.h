// FileLayout + ByteRange -> bytes.
//
// A read is planned first (read_plan.h, a pure function) and then carried out:
//   direct   target run = stored run, same bytes: straight from the source into the reply
//   decode   target run = stored run, another dtype or encoding: read into scratch, all runs of a
//            request at once, and from there through a kernel into the reply
//   gather   strided (a transpose): computed in tiles that many requests share, kept in the
//            TileCache until the readers have passed
// Literal text is rendered once and kept in the same cache.
//
// For a sequential reader the engine computes ahead: 1 MiB chunks of the file, ready before they
// are asked for (decode_ahead.h).
//
// Bytes depend on nothing but the layout and the source: not on threads, order of reads, request
// sizes, CPU, budget or tile size. Safe for concurrent use by several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include <ckfs/types.h>

#include "base/byte_range.h"
#include "base/byte_source.h"
#include "base/error.h"
#include "container/file_layout.h"
#include "tensor/kernel.h"

namespace ckfs {

struct EngineOptions {
  /// Bytes for tiles, chunks, scratch and rendered text together. At least 64 MiB.
  std::uint64_t memory = std::uint64_t{1} << 30;
  /// Threads that compute ahead of readers; 0: CPUs - 1, at least 1.
  unsigned ahead_threads = 0;
  /// Bytes of a tile; 0: chosen from the budget.
  std::uint64_t tile_bytes = 0;
  /// Scatter and kernels: the plain twins, for tests.
  KernelSet kernels = KernelSet::Fast;
};

struct EngineStatistics {
  std::uint64_t requests = 0;
  std::uint64_t bytes_to_readers = 0;
  std::uint64_t tiles = 0;
  std::uint64_t hits = 0;
  std::uint64_t memory = 0;
  std::uint64_t memory_peak = 0;
  std::uint64_t memory_budget = 0;
};

/// Where one reader of one file is: made by Engine::open_stream, kept with the open file.
class ReadStream;

class Engine {
 public:
  /// `source` must outlive the engine; `catalog` describes it.
  Engine(std::shared_ptr<const Catalog> catalog, ByteSource& source, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// A new reader of `file`. The layout is kept alive by the stream; the stream must not outlive
  /// the engine.
  std::shared_ptr<ReadStream> open_stream(std::shared_ptr<const FileLayout> file);

  /// The bytes of `range` of the stream's file. Errors: Io, Stale, Corrupt, OutOfMemory (a tile
  /// that the budget can never hold). Requires: range lies within the file.
  Result<Bytes> read(ReadStream& stream, ByteRange range);

  /// The same into the caller's buffer of range.size() bytes.
  Result<void> read(ReadStream& stream, ByteRange range, std::span<std::byte> out);

  EngineStatistics statistics() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckfs
