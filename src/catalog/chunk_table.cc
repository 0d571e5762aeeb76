// A row for each chunk that lies somewhere by itself, one for each shard: numbers of chunks are
// found by binary search. Two tables, one of numbers and one of places, would save nothing: sharded
// arrays are the ones with many small chunks.
#include "catalog/chunk_table.h"

#include <algorithm>
#include <fmt/format.h>
#include <ranges>

namespace ckfs {
namespace {

constexpr ChunkArrayId kNoArray = ~ChunkArrayId{0};

}  // namespace

ChunkArrayId ChunkTable::add_array(ChunkArray array) {
  CKFS_CHECK(array.codecs != nullptr);
  arrays_.push_back(std::move(array));
  index_arrays_.push_back(kNoArray);
  return static_cast<ChunkArrayId>(arrays_.size() - 1);
}

Result<void> ChunkTable::check_room(ChunkArrayId array, std::uint64_t count) const {
  // The last number is never used.
  if (count < kFirstChunkFile - (next_ - kFirstChunkFile)) return {};
  return fail(ErrorCode::Unsupported, "{}: {} chunks with those before them: too many (limit 2^31)",
              arrays_[array].name, this->count() + count);
}

Result<FileId> ChunkTable::add(ConsecutiveChunks run, std::uint64_t count) {
  CKFS_TRY_VOID(check_room(run.array, count));
  run.first = next_;
  next_ += static_cast<FileId>(count);
  runs_.push_back(run);
  return run.first;
}

Result<FileId> ChunkTable::add_stored(ChunkArrayId array, std::uint64_t cell,
                                      const FileRange& stored) {
  CKFS_CHECK(!is_chunk(stored.file));
  return add({.array = array, .cell = cell, .kind = SourceChunk::Kind::Stored, .stored = stored},
             1);
}

Result<FileId> ChunkTable::add_inline(ChunkArrayId array, std::uint64_t cell,
                                      std::span<const std::byte> stored) {
  CKFS_TRY_VOID(check_room(array, 1));
  inline_.emplace_back(stored.begin(), stored.end());
  const FileRange place{0, inline_.size() - 1, stored.size()};
  return add({.array = array, .cell = cell, .kind = SourceChunk::Kind::Inline, .stored = place}, 1);
}

Result<FileId> ChunkTable::add_absent(ChunkArrayId array) {
  return add({.array = array}, 1);
}

Result<FileId> ChunkTable::add_shard(ChunkArrayId array, std::uint64_t cell, const FileRange& shard,
                                     const ShardIndex& index) {
  CKFS_CHECK(!is_chunk(shard.file));
  CKFS_CHECK(index.count > 0 && index.count < kFirstChunkFile / 16);
  if (shard.size < index.nbytes()) {
    return fail(ErrorCode::Corrupt, "{}: shard {} of {} bytes has no room for its index ({} bytes)",
                arrays_[array].name, cell, shard.size, index.nbytes());
  }
  // The index is a chunk, too.
  CKFS_TRY_VOID(check_room(array, index.count + 1));
  ChunkArrayId index_array = index_arrays_[array];
  if (index_array == kNoArray || arrays_[index_array].nbytes != 16 * index.count ||
      arrays_[index_array].codecs->identity() == index.crc32c) {
    std::vector<Codec> codecs;
    if (index.crc32c) codecs.push_back(Codec::Crc32c);
    index_array = add_array({.name = arrays_[array].name + ": index",
                             .nbytes = 16 * index.count,
                             .codecs = std::make_shared<const CodecChain>(std::move(codecs))});
    index_arrays_[array] = index_array;
  }
  const std::uint64_t at = index.at_end ? shard.size - index.nbytes() : 0;
  CKFS_TRY(const FileId table,
           add_stored(index_array, cell, {shard.file, shard.offset + at, index.nbytes()}));
  return add({.array = array,
              .cell = cell,
              .kind = SourceChunk::Kind::InShard,
              .stored = shard,
              .index = table},
             index.count);
}

SourceChunk ChunkTable::chunk(FileId file) const {
  CKFS_CHECK(is_chunk(file) && file < next_);
  const ConsecutiveChunks& run =
      *std::prev(std::ranges::upper_bound(runs_, file, {}, &ConsecutiveChunks::first));
  SourceChunk chunk{.kind = run.kind, .array = &arrays_[run.array], .cell = run.cell};
  switch (run.kind) {
    case SourceChunk::Kind::Absent:
      break;
    case SourceChunk::Kind::Inline:
      chunk.bytes = inline_[run.stored.offset];
      break;
    case SourceChunk::Kind::InShard:
      chunk.inner = file - run.first;
      chunk.index = run.index;
      [[fallthrough]];
    case SourceChunk::Kind::Stored:
      chunk.stored = run.stored;
      break;
  }
  return chunk;
}

std::string ChunkTable::describe(FileId file) const {
  const SourceChunk one = chunk(file);
  std::string text = one.array->name;
  if (one.kind == SourceChunk::Kind::Absent) return text;
  text += one.kind == SourceChunk::Kind::InShard ? ": shard " : ": chunk ";
  // The grid of a sharded array is that of its shards.
  std::uint64_t rest = one.cell;
  std::string cell;
  for (const std::uint64_t count : std::views::reverse(one.array->grid)) {
    const std::uint64_t at = count == 0 ? 0 : rest % count;
    rest = count == 0 ? 0 : rest / count;
    cell.insert(0, fmt::format("{}{}", at, cell.empty() ? "" : "."));
  }
  text += cell.empty() ? fmt::format("{}", one.cell) : cell;
  if (one.kind == SourceChunk::Kind::InShard) text += fmt::format(", inner chunk {}", one.inner);
  return text;
}

}  // namespace ckfs
