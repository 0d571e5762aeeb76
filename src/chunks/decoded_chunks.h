// What was decoded of chunks, and the decoders that can go on where they stand.
//
// A chunk is decoded from its beginning, a block of 1 MiB at a time, by one thread for all who wait
// for it: each gets what he wants of the blocks that come by. So whatever the order of requests, a
// chunk is decoded once for all whose blocks have not come by when they ask. What comes later finds
//
//   blocks, as many as the budget has room for; those that somebody wanted go last;
//   blocks in the spill, where there is one: those that memory had no room for;
//   a decoder that stands before what he wants, and goes on from there.
//
// Else it begins anew; where the spill has room for the whole chunk it then goes on to its end
// (from the second time on that there was room when it began), not to begin again. While another
// thread decodes what lies behind, it waits for that thread, to begin anew for all who came too
// late; but not for longer than about twice what it has to decode itself. A chunk may stand for
// more bytes than anybody can wait for: then it has a decoder of its own meanwhile.
//
// A thread that is asked to stop (base/stop.h) does so behind the block at hand. Its decoder stays
// where it is, and another thread that waits for the chunk goes on with it. Safe for concurrent use
// by several threads.
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

/// What is wanted of a chunk.
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

  /// Of chunks that others are decoding it takes what comes by, and meanwhile decodes those that
  /// nobody does. Errors: those of the source; Corrupt, Unsupported, OutOfMemory, Stopped; with the
  /// chunk's name, but where the system has no memory. Requires: this thread holds no TierScope of
  /// Tier::Source.
  Result<void> read(std::vector<ChunkWish> wishes);

  /// The spill from now on, where there was none. False: there was one.
  /// `whole`: all of each chunk will be needed, so it is decoded to its end when it is begun, if
  /// the spill has room for it and its codecs know no jumps.
  bool add_spill(std::shared_ptr<Spill> spill, bool whole);
  std::shared_ptr<Spill> spill() const;

  /// Blocks that are there now go, into the spill where there is one, which stays; and decoders
  /// that nobody drives; as long as `still` says so.
  void clear(const std::function<bool()>& still);

  /// Nobody will need these chunks any more: what is kept of them goes, in memory and in the spill.
  void forget(std::span<const FileId> chunks);

  /// Whether the checksums of a chunk were looked at, and right.
  bool is_summed(FileId chunk) const;

  /// Bytes that codecs have made so far, those that were passed over among them; not what was
  /// decoded to look at checksums.
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
};

}  // namespace ckfs
