#include "chunks/chunk_source.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include "base/load_le.h"
#include "chunks/decoded_chunks.h"
#include "chunks/decoder.h"

namespace ckfs {
namespace {

/// Where a chunk's bytes come from, once its shard's index was looked at.
struct ChunkLocation {
  const ChunkArray* array = nullptr;
  bool absent = false;
  StoredBytes stored = {};
};

void fill(const ChunkArray& array, const ReadRequest& request) {
  const std::vector<std::byte>& one = array.fill;
  if (one.empty()) {
    std::ranges::fill(request.out, std::byte{0});
    return;
  }
  auto at = static_cast<std::size_t>(request.offset % one.size());
  for (std::byte& byte : request.out) {
    byte = one[at];
    if (++at == one.size()) at = 0;
  }
}

}  // namespace

class ChunkSource::Impl {
 public:
  Impl(ByteSource& files, const ChunkTable& table, std::shared_ptr<BufferPool> pool,
       std::shared_ptr<Spill> spill)
      : files_(files), table_(table), decoded_(table, std::move(pool), std::move(spill)) {}

  Result<void> read(std::span<const ReadRequest> batch, bool once);
  Result<std::map<FileId, ChunkLocation>> find_places(std::span<const ReadRequest> batch);
  std::vector<FileId> stored_in(std::span<const FileId> files) const;

  ByteSource& files_;
  const ChunkTable& table_;
  DecodedChunks decoded_;

 private:
  /// What the index of its shard says of an inner chunk.
  using IndexEntry = std::array<std::byte, 16>;

  Result<void> read_entries(std::map<FileId, IndexEntry>& entries);
  Result<ChunkLocation> place(FileId chunk, const IndexEntry& entry) const;
};

/// `entry`: of an inner chunk.
Result<ChunkLocation> ChunkSource::Impl::place(FileId file, const IndexEntry& entry) const {
  const SourceChunk chunk = table_.chunk(file);
  ChunkLocation place{.array = chunk.array};
  switch (chunk.kind) {
    case SourceChunk::Kind::Absent:
      place.absent = true;
      break;
    case SourceChunk::Kind::Inline:
      place.stored.bytes = chunk.bytes;
      break;
    case SourceChunk::Kind::Stored:
      place.stored = {&files_, chunk.stored, {}};
      break;
    case SourceChunk::Kind::InShard: {
      const auto offset = load_le<std::uint64_t>(entry);
      const auto nbytes = load_le<std::uint64_t>(std::span(entry).subspan(8));
      constexpr std::uint64_t kNone = ~std::uint64_t{0};
      if (offset == kNone && nbytes == kNone) {
        if (const std::string& why = chunk.array->why_whole; !why.empty()) {
          return fail(ErrorCode::Corrupt, "{}: is absent in its shard, and {}",
                      table_.describe(file), why);
        }
        place.absent = true;
        break;
      }
      if (offset > chunk.stored.size || nbytes > chunk.stored.size - offset) {
        return fail(ErrorCode::Corrupt, "{}: {} bytes from {} of a shard of {}",
                    table_.describe(file), nbytes, offset, chunk.stored.size);
      }
      place.stored = {&files_, {chunk.stored.file, chunk.stored.offset + offset, nbytes}, {}};
      break;
    }
  }
  if (!place.absent && chunk.array->codecs->identity()) {
    const std::uint64_t size =
        place.stored.source == nullptr ? place.stored.bytes.size() : place.stored.range.size;
    if (size != chunk.array->nbytes) {
      return fail(ErrorCode::Corrupt, "{}: {} bytes are stored (not {})", table_.describe(file),
                  size, chunk.array->nbytes);
    }
  }
  return place;
}

/// Reads all indexes in one batch. One with a checksum is read whole first, one after another, so
/// those that are still to be read are hinted.
Result<void> ChunkSource::Impl::read_entries(std::map<FileId, IndexEntry>& entries) {
  std::vector<ReadRequest> batch;
  std::map<FileId, FileRange> unseen;  // by index
  for (auto& [file, entry] : entries) {
    const SourceChunk inner = table_.chunk(file);
    batch.push_back({inner.index, 16 * inner.inner, entry});
    const SourceChunk index = table_.chunk(inner.index);
    if (has_sums(*index.array->codecs) && !decoded_.is_summed(inner.index)) {
      unseen.try_emplace(inner.index, index.stored);
    }
  }
  if (unseen.size() > 1) {
    std::vector<FileRange> ranges;
    for (const auto& [index, range] : unseen) ranges.push_back(range);
    files_.will_need(ranges);
  }
  return read(batch, false);
}

/// Of the chunks of a batch, which has many requests for each.
Result<std::map<FileId, ChunkLocation>> ChunkSource::Impl::find_places(
    std::span<const ReadRequest> batch) {
  std::map<FileId, ChunkLocation> places;
  std::map<FileId, IndexEntry> entries;
  for (const ReadRequest& request : batch) {
    if (!is_chunk(request.file) || !places.try_emplace(request.file).second) continue;
    if (table_.chunk(request.file).kind == SourceChunk::Kind::InShard) entries[request.file] = {};
  }
  if (!entries.empty()) CKFS_TRY_VOID(read_entries(entries));
  for (auto& [file, found] : places) {
    const auto entry = entries.find(file);
    CKFS_TRY(found, place(file, entry == entries.end() ? IndexEntry{} : entry->second));
  }
  return places;
}

Result<void> ChunkSource::Impl::read(std::span<const ReadRequest> batch, bool once) {
  std::vector<ReadRequest> plain;
  std::map<FileId, std::vector<WantedBytes>> coded;
  CKFS_TRY(auto places, find_places(batch));
  for (const ReadRequest& request : batch) {
    if (!is_chunk(request.file)) {
      plain.push_back(request);
      continue;
    }
    const ChunkLocation& place = places.at(request.file);
    if (place.absent) {
      fill(*place.array, request);
    } else if (!place.array->codecs->identity()) {
      coded[request.file].push_back({request.offset, request.out});
    } else if (place.stored.source == nullptr) {
      std::ranges::copy(
          place.stored.bytes.subspan(static_cast<std::size_t>(request.offset), request.out.size()),
          request.out.begin());
    } else {
      plain.push_back(
          {place.stored.range.file, place.stored.range.offset + request.offset, request.out});
    }
  }
  std::set<FileId> used;
  std::vector<ChunkWish> wishes;
  for (auto& [chunk, wanted] : coded) {
    ChunkLocation& place = places.at(chunk);
    if (place.stored.source != nullptr) used.insert(place.stored.range.file);
    place.stored.once = once;
    wishes.push_back({{chunk, place.array, place.stored}, std::move(wanted)});
  }
  if (!wishes.empty()) CKFS_TRY_VOID(decoded_.read(std::move(wishes)));
  // Blocks decoded earlier are valid only while their file is the one that was opened.
  const std::vector<FileId> files(used.begin(), used.end());
  if (!files.empty()) CKFS_TRY_VOID(files_.verify(files));
  if (plain.empty()) return {};
  return once ? files_.read_once(plain) : files_.read(plain);
}

std::vector<FileId> ChunkSource::Impl::stored_in(std::span<const FileId> files) const {
  std::set<FileId> real;
  for (const FileId file : files) {
    if (!is_chunk(file)) {
      real.insert(file);
      continue;
    }
    const SourceChunk chunk = table_.chunk(file);
    if (chunk.kind == SourceChunk::Kind::Stored || chunk.kind == SourceChunk::Kind::InShard) {
      real.insert(chunk.stored.file);
    }
  }
  return {real.begin(), real.end()};
}

ChunkSource::ChunkSource(ByteSource& files, const ChunkTable& table,
                         std::shared_ptr<BufferPool> pool, std::shared_ptr<Spill> spill)
    : impl_(std::make_unique<Impl>(files, table, std::move(pool), std::move(spill))) {}

ChunkSource::~ChunkSource() = default;

Result<void> ChunkSource::read(std::span<const ReadRequest> batch) {
  return impl_->read(batch, false);
}

Result<void> ChunkSource::read_once(std::span<const ReadRequest> batch) {
  return impl_->read(batch, true);
}

std::optional<MappedBytes> ChunkSource::map(const FileRange& range, std::uint64_t used) {
  if (is_chunk(range.file)) return std::nullopt;
  return impl_->files_.map(range, used);
}

std::optional<MappedBytes> ChunkSource::map_once(const FileRange& range, std::uint64_t used) {
  if (is_chunk(range.file)) return std::nullopt;
  return impl_->files_.map_once(range, used);
}

Result<void> ChunkSource::check_mapped(std::span<const MappedBytes> mapped) {
  return impl_->files_.check_mapped(mapped);
}

void ChunkSource::rest(const std::function<bool()>& still) {
  impl_->decoded_.clear(still);
  impl_->files_.rest(still);
}

void ChunkSource::will_need(std::span<const FileRange> ranges) {
  std::vector<FileRange> stored;
  for (const FileRange& range : ranges) {
    if (!is_chunk(range.file)) {
      stored.push_back(range);
      continue;
    }
    const SourceChunk chunk = impl_->table_.chunk(range.file);
    // Only where nothing was decoded yet: a decoder hints its next bytes itself.
    if (chunk.kind != SourceChunk::Kind::Stored || range.offset > 0) continue;
    constexpr std::uint64_t kFirst = std::uint64_t{1} << 20;
    stored.push_back({chunk.stored.file, chunk.stored.offset, std::min(chunk.stored.size, kFirst)});
  }
  if (!stored.empty()) impl_->files_.will_need(stored);
}

SourceTraits ChunkSource::traits(FileId file) const {
  if (!is_chunk(file)) return impl_->files_.traits(file);
  const std::vector<FileId> real = impl_->stored_in({&file, 1});
  if (real.empty()) return {};
  const SourceTraits stored = impl_->files_.traits(real.front());
  return {.streams = stored.streams, .is_far = stored.is_far};
}

Result<void> ChunkSource::verify(std::span<const FileId> files) {
  return impl_->files_.verify(impl_->stored_in(files));
}

std::uint64_t ChunkSource::size(FileId file) const {
  return is_chunk(file) ? impl_->table_.size(file) : impl_->files_.size(file);
}

const std::string& ChunkSource::name(FileId file) const {
  return is_chunk(file) ? impl_->table_.chunk(file).array->name : impl_->files_.name(file);
}

bool ChunkSource::add_spill(std::shared_ptr<Spill> spill, bool whole) {
  return impl_->decoded_.add_spill(std::move(spill), whole);
}

void ChunkSource::remove_spill() {
  impl_->decoded_.remove_spill();
}

void ChunkSource::forget(std::span<const FileId> chunks) {
  impl_->decoded_.forget(chunks);
}

std::uint64_t ChunkSource::spill_limit() const {
  const std::shared_ptr<Spill> spill = impl_->decoded_.spill();
  return spill == nullptr ? 0 : spill->limit();
}

ChunkStatistics ChunkSource::statistics() const {
  const std::shared_ptr<Spill> spill = impl_->decoded_.spill();
  return {.decoded = impl_->decoded_.decoded(),
          .spill = spill == nullptr ? SpillStatistics() : spill->statistics()};
}

}  // namespace ckfs
