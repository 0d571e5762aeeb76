// Files and decoded chunks as one ByteSource, through which a catalog with chunks is read.
//
// A chunk of any decoded size is served by streaming (decoded_chunks.h). Reading waits for memory
// of the budget (Tier::Source), and holds no other memory of that tier while it waits.
//
// Safe for concurrent use by several threads.
#pragma once

#include <memory>

#include "base/byte_source.h"
#include "catalog/chunk_table.h"
#include "chunks/spill.h"
#include "memory/buffer_pool.h"

namespace ckfs {

struct ChunkStatistics {
  std::uint64_t decoded = 0;  // DecodedChunks::decoded()
  SpillStatistics spill;
};

class ChunkSource final : public ByteSource {
 public:
  /// `files` and `table` must outlive it. `spill` (of blocks of DecodedChunks::kBlock) may be
  /// nullptr.
  ChunkSource(ByteSource& files, const ChunkTable& table, std::shared_ptr<BufferPool> pool,
              std::shared_ptr<Spill> spill = nullptr);
  ~ChunkSource() override;

  /// Requests of both kinds. Errors: those of the files; Corrupt (a chunk's bytes or its shard's
  /// index, with array and chunk named), Unsupported, OutOfMemory. Requires, where there are
  /// chunks: this thread holds no TierScope of Tier::Source.
  Result<void> read(std::span<const ReadRequest> batch) override;
  Result<void> read_once(std::span<const ReadRequest> batch) override;
  std::optional<MappedBytes> map(const FileRange& range, std::uint64_t used) override;
  std::optional<MappedBytes> map_once(const FileRange& range, std::uint64_t used) override;
  Result<void> check_mapped(std::span<const MappedBytes> mapped) override;
  void rest(const std::function<bool()>& still) override;
  void will_need(std::span<const FileRange> ranges) override;
  SourceTraits traits(FileId file) const override;
  Result<void> verify(std::span<const FileId> files) override;
  std::uint64_t size(FileId file) const override;
  const std::string& name(FileId file) const override;

  /// DecodedChunks::add_spill().
  bool add_spill(std::shared_ptr<Spill> spill, bool whole);
  /// DecodedChunks::remove_spill().
  void remove_spill();
  /// DecodedChunks::forget().
  void forget(std::span<const FileId> chunks);
  /// Bytes that the spill may take; 0 without a spill.
  std::uint64_t spill_limit() const;

  ChunkStatistics statistics() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckfs
