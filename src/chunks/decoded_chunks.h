// Decoded blocks of chunks, and the decoders that can continue from their positions.
//
// One thread decodes a chunk from its beginning, a block of 1 MiB at a time, for all requests that
// wait for it. Each gets its parts of the blocks as they pass. One decode serves every request
// whose blocks it has not passed yet. A later request finds
//
//   - blocks, as many as the budget has room for; those that a request wanted are evicted last;
//   - blocks in the spill, if there is one: those that memory had no room for;
//   - a decoder at a position before its bytes, which continues from there.
//
// Otherwise decoding begins anew. If the spill has room for the whole chunk, it then continues to
// the end (from the second beginning with such room on), so that it never begins again. While
// another thread decodes later bytes of the chunk, the request waits for it, and then one decode
// serves all late requests. It waits no longer than about twice the time of its own decoding. A
// chunk may stand for more bytes than a reader can wait for: then the request gets a decoder of its
// own at once.
//
// A thread that is asked to stop (base/stop.h) does so after the current block. Its decoder stays
// where it is, and another thread that waits for the chunk continues with it. Safe for concurrent
// use by several threads.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
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

/// Bytes [offset, ...) of a chunk at `out`.
struct WantedBytes {
  std::uint64_t offset = 0;
  std::span<std::byte> out;
};

/// The bytes that a read wants of a chunk.
struct ChunkWish {
  CodedChunk chunk;
  std::vector<WantedBytes> wanted;
};

class DecodedChunks {
 public:
  static constexpr std::uint64_t kBlock = std::uint64_t{1} << 20;

  /// `table` names chunks in errors, and must outlive it. `spill` may be nullptr.
  DecodedChunks(const ChunkTable& table, std::shared_ptr<BufferPool> pool,
                std::shared_ptr<Spill> spill);
  ~DecodedChunks();
  DecodedChunks(const DecodedChunks&) = delete;
  DecodedChunks& operator=(const DecodedChunks&) = delete;

  /// Reads all wishes. Takes blocks from the threads that decode their chunks already, and decodes
  /// the other chunks itself. Errors: those of the source; Corrupt, Unsupported, OutOfMemory,
  /// Stopped; with the chunk's name, unless the system has no memory. Requires: this thread holds
  /// no TierScope of Tier::Source.
  Result<void> read(std::vector<ChunkWish> wishes);

  /// Sets the spill from now on. False: there was one already. `whole`: all of each chunk will be
  /// needed, so it is decoded to its end when it is begun, if the spill has room for it and its
  /// codecs allow no jumps.
  bool add_spill(std::shared_ptr<Spill> spill, bool whole);
  /// Goes on without the spill: its blocks are decoded again.
  void remove_spill();
  std::shared_ptr<Spill> spill() const;

  /// Evicts the present blocks (into the spill, if there is one; that stays) and the decoders that
  /// no thread drives, as long as `still` returns true.
  void clear(const std::function<bool()>& still);

  /// Drops all that is kept of these chunks, in memory and in the spill: no read will need them.
  void forget(std::span<const FileId> chunks);

  /// Whether the checksums of a chunk were checked, and right.
  bool is_summed(FileId chunk) const;

  /// Bytes that codecs have made so far, skipped ones included, without passes that only check
  /// checksums.
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
  struct Drive;
  struct Active;
  using Ages = std::list<Key>;

  std::vector<WantedBytes> take_from_cache(FileId chunk, std::vector<WantedBytes> wanted)
      CKFS_EXCLUDES(mutex_);
  std::vector<WantedBytes> take_from_spill(FileId chunk, std::vector<WantedBytes> wanted) const;
  Result<void> drive(Drive& drive) CKFS_EXCLUDES(mutex_);
  void take_kept(Request& own) CKFS_EXCLUDES(mutex_);
  bool is_served(const Request& request) const CKFS_REQUIRES(mutex_);
  Result<void> finish(std::deque<Request>& requests) CKFS_EXCLUDES(mutex_);
  void leave(std::deque<Request>& requests) CKFS_EXCLUDES(mutex_);
  Result<void> check_sums(const CodedChunk& chunk) CKFS_EXCLUDES(mutex_);
  Result<std::unique_ptr<Decoder>> start(const CodedChunk& chunk, Stages stages,
                                         std::uint64_t least) CKFS_EXCLUDES(mutex_);
  Result<std::size_t> decode_next(const CodedChunk& chunk, Decoder& decoder);
  bool deliver(Active& active, const Decoder& decoder, std::size_t size) CKFS_EXCLUDES(mutex_);
  void park(Active& active, std::unique_ptr<Decoder> decoder) CKFS_REQUIRES(mutex_);
  std::unique_ptr<Decoder> take_parked(Active& active, const Request& own) CKFS_REQUIRES(mutex_);
  bool goes_to_end(const CodedChunk& chunk) CKFS_EXCLUDES(mutex_);
  void keep(FileId chunk, Decoder& decoder, std::size_t size, bool wanted) CKFS_EXCLUDES(mutex_);
  std::shared_ptr<const Block> oldest_unused(Ages& ages) CKFS_REQUIRES(mutex_);
  void reclaim(std::uint64_t bytes, BufferPool::Demand demand) CKFS_EXCLUDES(mutex_);
  std::uint64_t drop_oldest(Ages DecodedChunks::* list) CKFS_EXCLUDES(mutex_);
  std::unique_ptr<Decoder> oldest_decoder() CKFS_REQUIRES(mutex_);

  const ChunkTable& table_;
  const std::shared_ptr<BufferPool> pool_;
  mutable Mutex mutex_;  // taken before the pool's; never held while reading or decoding
  std::shared_ptr<Spill> spill_ CKFS_GUARDED_BY(mutex_);
  bool whole_ CKFS_GUARDED_BY(mutex_) = false;
  // By number in the table; while there is a spill.
  std::vector<bool> begun_ CKFS_GUARDED_BY(mutex_);
  CondVar changed_;
  std::map<Key, Entry> blocks_ CKFS_GUARDED_BY(mutex_);
  Ages wanted_ CKFS_GUARDED_BY(mutex_);  // least recently used first
  Ages passed_ CKFS_GUARDED_BY(mutex_);
  std::map<FileId, std::shared_ptr<Active>> active_ CKFS_GUARDED_BY(mutex_);
  std::map<const ChunkArray*, std::uint64_t> work_space_ CKFS_GUARDED_BY(mutex_);
  // By number in the table: whose checksums were right. Of millions of chunks a bit each.
  std::vector<bool> summed_ CKFS_GUARDED_BY(mutex_);
  std::uint64_t clock_ CKFS_GUARDED_BY(mutex_) = 0;
  std::uint64_t decoded_ CKFS_GUARDED_BY(mutex_) = 0;
  BufferPool::Reclaimer reclaimer_;  // last: its function uses the rest
};

}  // namespace ckfs
