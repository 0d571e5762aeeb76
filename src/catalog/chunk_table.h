// Chunks as files of their own, for catalogs whose bytes are not in files as they are. A chunk has
// a FileId above those of real files, and its bytes are the decoded ones, of a size that its array
// fixes; so storages, extents and planning code need not know about it, and a ChunkSource
// (chunks/chunk_source.h) serves both kinds.
//
// A chunk's stored bytes lie in a file, in the table itself (a value inside a node of a database),
// or nowhere (absent: all of it is the fill value, at no cost whatever its size). The inner chunks
// of a shard are chunks whose place is found in the shard's index when they are first read: a shard
// costs what one chunk costs, however many are in it, and opening reads none of its bytes.
//
// Filled while a checkpoint is opened, by one thread; const from then on, and safe for concurrent
// use.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"
#include "base/error.h"
#include "catalog/codec_chain.h"

namespace ckfs {

/// Chunks are numbered from here on; files below.
inline constexpr FileId kFirstChunkFile = FileId{1} << 31;

constexpr bool is_chunk(FileId file) {
  return file >= kFirstChunkFile;
}

/// What the chunks of one array have in common.
struct ChunkArray {
  std::string name;          // for messages
  std::uint64_t nbytes = 0;  // of each chunk, decoded
  std::shared_ptr<const CodecChain> codecs = std::make_shared<const CodecChain>();
  std::vector<std::byte> fill = {};  // one element, as decoding gives it; empty: zeros
  /// Chunks (of an array in shards: shards) along each dimension, to name one by its indices.
  std::vector<std::uint64_t> grid = {};
  /// Why none may be absent in its shard; empty: it is `fill`.
  std::string why_whole = {};
};
using ChunkArrayId = std::uint32_t;

/// How a shard says where its inner chunks are: pairs of offset and size, u64 little-endian, all
/// ones where one is absent; behind them, where `crc32c` says so, a CRC-32C.
struct ShardIndex {
  std::uint64_t count = 0;  // inner chunks: from 1 to 2^27 - 1
  bool at_end = true;
  bool crc32c = true;

  std::uint64_t nbytes() const { return 16 * count + (crc32c ? 4 : 0); }
};

/// A chunk as the table gives it.
struct SourceChunk {
  enum class Kind : std::uint8_t { Stored, Inline, Absent, InShard };
  Kind kind = Kind::Absent;
  const ChunkArray* array = nullptr;
  std::uint64_t cell = 0;                 // its place in the array's grid, row-major; of the shard
  FileRange stored = {};                  // Stored; InShard: the whole shard
  std::span<const std::byte> bytes = {};  // Inline
  std::uint64_t inner = 0;                // InShard: its number in the index
  FileId index = 0;                       // InShard: the chunk whose bytes are the pairs
};

class ChunkTable {
 public:
  ChunkArrayId add_array(ChunkArray array);
  /// From now on no chunk of the array may be absent in its shard; an empty `why`: it may. The
  /// reader of the shard finds absent chunks.
  void require_all(ChunkArrayId array, std::string_view why) { arrays_[array].why_whole = why; }

  // Functions that add chunks have the error Unsupported (more than can be numbered), which changes
  // nothing. Requires: `cell` is one of the array's grid.

  /// Chunk `cell` of an array, stored at `stored` of a real file.
  Result<FileId> add_stored(ChunkArrayId array, std::uint64_t cell, const FileRange& stored);

  /// The same, stored in these bytes, which are copied.
  Result<FileId> add_inline(ChunkArrayId array, std::uint64_t cell,
                            std::span<const std::byte> stored);

  /// A chunk that is not stored. One is enough for all absent chunks of an array.
  Result<FileId> add_absent(ChunkArrayId array);

  /// The inner chunks of the shard `cell` of the array, in the order of its index. Gives the first
  /// one's number; the others follow. `array` describes the inner chunks; `shard` is the shard in a
  /// real file. (The reader of a database's node splits a shard that lies in the node into inline
  /// chunks.) Errors: Corrupt (no room for the index), and those above.
  Result<FileId> add_shard(ChunkArrayId array, std::uint64_t cell, const FileRange& shard,
                           const ShardIndex& index);

  bool empty() const { return runs_.empty(); }
  std::uint64_t count() const { return next_ - kFirstChunkFile; }

  /// Requires: `file` was given by this table.
  SourceChunk chunk(FileId file) const;
  std::uint64_t size(FileId file) const { return chunk(file).array->nbytes; }
  /// "params.kernel: chunk 0.3"; of an absent one the array's name alone.
  std::string describe(FileId file) const;

 private:
  /// Chunks with consecutive numbers: one, or the inner ones of a shard.
  struct ConsecutiveChunks {
    FileId first = 0;
    ChunkArrayId array = 0;
    std::uint64_t cell = 0;
    SourceChunk::Kind kind = SourceChunk::Kind::Absent;
    FileRange stored = {};  // Inline: offset is its number in inline_
    FileId index = 0;
  };
  Result<void> check_room(ChunkArrayId array, std::uint64_t count) const;
  Result<FileId> add(ConsecutiveChunks run, std::uint64_t count);

  std::deque<ChunkArray> arrays_;
  std::vector<ChunkArrayId> index_arrays_;  // by array: that of its shards' indexes, once there
  std::vector<ConsecutiveChunks> runs_;     // by first
  std::deque<std::vector<std::byte>> inline_;
  FileId next_ = kFirstChunkFile;
};

}  // namespace ckfs
