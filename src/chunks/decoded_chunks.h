// What was decoded of chunks, and the decoders that can go on where they stand.
//
// A chunk is decoded from its beginning, a block of 1 MiB at a time, by one thread for all who wait
// for it: each gets what he wants of the blocks that come by. So whatever the order of requests, a
// chunk is decoded once for all that come while it is. What comes later finds
//
//   blocks, as many as the budget has room for; those that somebody wanted go last;
//   blocks in the spill, where there is one;
//   a decoder that stands before what he wants, and goes on from there.
//
// Else it begins anew. Safe for concurrent use by several threads.
#pragma once

#include <compare>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "catalog/chunk_table.h"
#include "chunks/decoder.h"
#include "memory/buffer_pool.h"

namespace ckfs {

class Spill;

/// A chunk that is decoded.
struct CodedChunk {
  FileId id = 0;
  const ChunkArray* array = nullptr;
  StoredBytes stored;
};

/// Bytes [offset, ...) of a chunk, wanted at `out`.
struct WantedBytes {
  std::uint64_t offset = 0;
  std::span<std::byte> out;
};

class DecodedChunks {
 public:
  static constexpr std::uint64_t kBlock = std::uint64_t{1} << 20;

  /// `spill` may be nullptr.
  DecodedChunks(std::shared_ptr<BufferPool> pool, std::shared_ptr<Spill> spill);
  ~DecodedChunks();
  DecodedChunks(const DecodedChunks&) = delete;
  DecodedChunks& operator=(const DecodedChunks&) = delete;

  /// Errors: those of the source; Corrupt, Unsupported, OutOfMemory.
  Result<void> read(const CodedChunk& chunk, std::vector<WantedBytes> wanted);

  /// Blocks and decoders go; the spill stays.
  void clear();

  /// Bytes that codecs have made so far, those that were passed over among them.
  std::uint64_t decoded() const;

 private:
  struct Key {
    FileId chunk = 0;
    std::uint64_t block = 0;
    auto operator<=>(const Key&) const = default;
  };
  struct Block {
    Buffer buffer;
    std::size_t size = 0;
    std::span<const std::byte> span() const { return {buffer.data(), size}; }
  };
  struct Entry {
    std::shared_ptr<const Block> block;
    bool wanted = false;  // in which of the two lists its age is
    std::list<Key>::iterator age;
  };
  struct Decoder;
  struct Request;
  struct Active;
  using Ages = std::list<Key>;

  std::vector<WantedBytes> take_from_cache(FileId chunk, std::vector<WantedBytes> wanted)
      CKFS_EXCLUDES(mutex_);
  std::vector<WantedBytes> take_from_spill(FileId chunk, std::vector<WantedBytes> wanted);
  Result<void> drive(const CodedChunk& chunk, Active& active, Request& own) CKFS_EXCLUDES(mutex_);
  Result<void> check_sums(const CodedChunk& chunk) CKFS_EXCLUDES(mutex_);
  Result<std::unique_ptr<Decoder>> start(const CodedChunk& chunk, Stages stages)
      CKFS_EXCLUDES(mutex_);
  Result<std::size_t> decode_next(const CodedChunk& chunk, Decoder& decoder);
  bool deliver(Active& active, const Decoder& decoder, std::size_t size) CKFS_EXCLUDES(mutex_);
  void keep(FileId chunk, Decoder& decoder, std::size_t size, bool wanted) CKFS_EXCLUDES(mutex_);
  std::shared_ptr<const Block> oldest_unused(Ages& ages) CKFS_REQUIRES(mutex_);
  void reclaim(std::uint64_t bytes, BufferPool::Demand demand) CKFS_EXCLUDES(mutex_);
  std::unique_ptr<Decoder> oldest_decoder() CKFS_REQUIRES(mutex_);

  const std::shared_ptr<BufferPool> pool_;
  const std::shared_ptr<Spill> spill_;
  mutable Mutex mutex_;  // taken before the pool's; never held while reading or decoding
  CondVar changed_;
  std::map<Key, Entry> blocks_ CKFS_GUARDED_BY(mutex_);
  Ages wanted_ CKFS_GUARDED_BY(mutex_);  // least recently used first
  Ages passed_ CKFS_GUARDED_BY(mutex_);
  std::map<FileId, std::shared_ptr<Active>> active_ CKFS_GUARDED_BY(mutex_);
  std::map<const ChunkArray*, std::uint64_t> work_space_ CKFS_GUARDED_BY(mutex_);
  std::set<FileId> summed_ CKFS_GUARDED_BY(mutex_);  // whose checksums were right
  std::uint64_t clock_ CKFS_GUARDED_BY(mutex_) = 0;
  std::uint64_t decoded_ CKFS_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckfs
