// One decoder for a chunk at a time, as a rule, and one thread that drives it. Several decoders of
// one chunk would serve requests in any order sooner, and decode everything several times. But a
// reader of the first bytes of a chunk of 128 GiB (4 MB of zstd can stand for as many zeros) cannot
// wait for a reader of the last: its thread drives a decoder of its own, up to its last byte. That
// costs no more than to decode later, because the first decoder has passed those bytes already. A
// third begins only where it has less than half as far to go as the second, so there are few.
//
// Memory: a thread acquires a decoder as a whole (Tier::Source), and holds nothing else of that
// tier; afterwards nothing waits for memory. A block is decoded into the decoder's own buffer,
// which becomes a kept block if the pool gives another buffer.
#include "chunks/decoded_chunks.h"

#include <algorithm>
#include <array>
#include <exception>
#include <list>
#include <new>
#include <utility>

#include "base/stop.h"
#include "chunks/spill.h"

namespace ckfs {

struct DecodedChunks::Decoder {
  explicit Decoder(std::vector<Buffer> buffers)
      : memory(std::move(buffers[0])), block(std::move(buffers[1])), space(memory.span()) {}

  Buffer memory, block;
  WorkSpace space;
  std::unique_ptr<ByteStream> stream;
  std::uint64_t position = 0;  // a multiple of kBlock, or the end
};

/// What one call of read() still wants of a chunk, in order, no part across a border of blocks.
/// Changed with the lock held. A drive takes parts out of `wanted` before it copies them, so that
/// two drives never write to one place. May be destroyed while nothing is copied.
struct DecodedChunks::Request {
  CodedChunk chunk;
  std::vector<WantedBytes> wanted;
  std::shared_ptr<Active> active = {};
  std::optional<Error> error = {};
  std::size_t copying = 0;  // threads that write to parts taken out of `wanted`

  bool done() const { return copying == 0 && (wanted.empty() || error); }
  /// The part of `wanted` in [begin, end).
  std::span<const WantedBytes> in(std::uint64_t begin, std::uint64_t end) const {
    const auto first = std::ranges::lower_bound(wanted, begin, {}, &WantedBytes::offset);
    const auto last = std::ranges::lower_bound(first, wanted.end(), end, {}, &WantedBytes::offset);
    return {first, last};
  }
  /// The end of the last wanted part that begins before `position`; 0: there is none.
  std::uint64_t end_before(std::uint64_t position) const {
    const auto behind = in(0, position);
    return behind.empty() ? 0 : behind.back().offset + behind.back().out.size();
  }
  std::uint64_t end() const { return end_before(~std::uint64_t{0}); }
};

/// A thread that decodes a chunk for its own request, and for others on its way.
struct DecodedChunks::Drive {
  Request& own;
  const bool jumps;            // the codecs allow random access: it decodes no blocks in between
  std::uint64_t position = 0;  // of the block at hand
  bool to_end = false;

  /// Bytes that a decoder at `from` makes until `request` has all its parts.
  static std::uint64_t left_of(const Request& request, std::uint64_t from, bool jumps) {
    if (request.wanted.empty()) return 0;
    if (jumps) {
      const std::uint64_t first = request.wanted.front().offset / kBlock;
      const std::uint64_t blocks = request.wanted.back().offset / kBlock + 1 - first;
      return std::min<std::uint64_t>(request.wanted.size(), blocks) * kBlock;
    }
    const std::uint64_t end = request.end();
    return (end > from ? end - from : 0) + request.end_before(from);
  }
  std::uint64_t left() const {
    if (to_end) return own.chunk.array->nbytes - position;
    return left_of(own, position, jumps);
  }
};

/// A chunk that has waiting requests, or a decoder.
struct DecodedChunks::Active {
  /// A decoder that no thread drives.
  struct Parked {
    std::unique_ptr<Decoder> decoder;
    std::uint64_t used = 0;
  };
  /// One for a reader in order, and one for a reader that jumped elsewhere in between.
  static constexpr std::size_t kMostParked = 2;

  std::vector<Request*> requests;
  std::vector<Drive*> drives;
  std::array<Parked, kMostParked> parked;

  bool has_parked() const {
    return std::ranges::any_of(parked, [](const Parked& each) { return each.decoder != nullptr; });
  }
  bool unused() const { return requests.empty() && drives.empty() && !has_parked(); }
};

namespace {

/// In order, cut where blocks begin.
std::vector<WantedBytes> by_blocks(std::span<const WantedBytes> wanted, std::uint64_t block) {
  std::vector<WantedBytes> parts;
  parts.reserve(wanted.size());
  for (WantedBytes piece : wanted) {
    while (!piece.out.empty()) {
      const auto size = static_cast<std::size_t>(
          std::min<std::uint64_t>(piece.out.size(), block - piece.offset % block));
      parts.push_back({piece.offset, piece.out.first(size)});
      piece = {piece.offset + size, piece.out.subspan(size)};
    }
  }
  std::ranges::stable_sort(parts, {}, &WantedBytes::offset);
  return parts;
}

/// Calls use(block, parts) for the parts of each block.
template <typename Use>
void for_each_block(std::span<const WantedBytes> wanted, std::uint64_t block_size, Use use) {
  while (!wanted.empty()) {
    const std::uint64_t block = wanted.front().offset / block_size;
    const auto end =
        std::ranges::lower_bound(wanted, (block + 1) * block_size, {}, &WantedBytes::offset);
    const auto count = static_cast<std::size_t>(end - wanted.begin());
    use(block, wanted.first(count));
    wanted = wanted.subspan(count);
  }
}

void copy_out(std::span<const std::byte> block, std::uint64_t begin,
              std::span<const WantedBytes> wanted) {
  for (const WantedBytes& piece : wanted) {
    std::ranges::copy(
        block.subspan(static_cast<std::size_t>(piece.offset - begin), piece.out.size()),
        piece.out.begin());
  }
}

/// Whether any byte can be had without those before it.
bool is_random_access(const CodecChain& codecs) {
  return std::ranges::all_of(
      codecs.codecs(), [](Codec codec) { return codec == Codec::Blosc || codec == Codec::Crc32c; });
}

std::uint64_t stored_size(const StoredBytes& stored) {
  return stored.source == nullptr ? stored.bytes.size() : stored.range.size;
}

}  // namespace

DecodedChunks::DecodedChunks(const ChunkTable& table, std::shared_ptr<BufferPool> pool,
                             std::shared_ptr<Spill> spill)
    : table_(table),
      pool_(std::move(pool)),
      spill_(std::move(spill)),
      reclaimer_(pool_->on_shortage(
          Tier::Source,
          [this](std::uint64_t bytes, BufferPool::Demand demand) { reclaim(bytes, demand); })) {}

DecodedChunks::~DecodedChunks() = default;

Result<void> DecodedChunks::read(std::vector<ChunkWish> wishes) {
  std::deque<Request> requests;  // they stay where they are
  for (ChunkWish& wish : wishes) {
    const FileId id = wish.chunk.id;
    auto wanted = take_from_cache(id, by_blocks(std::move(wish.wanted), kBlock));
    wanted = take_from_spill(id, std::move(wanted));
    if (!wanted.empty()) requests.push_back({wish.chunk, std::move(wanted)});
  }
  if (requests.empty()) return {};

  Result<void> done;
  bool out_of_memory = false;
  try {
    done = finish(requests);
  } catch (const std::bad_alloc&) {
    out_of_memory = true;  // an error's text would need memory, too
  }
  leave(requests);
  if (out_of_memory) {
    return Failure(Error(ErrorCode::OutOfMemory, "out of memory"));  // this text needs no memory
  }
  return done;
}

/// Enters the requests, and drives or waits for other drives until they are done. Throws
/// std::bad_alloc.
Result<void> DecodedChunks::finish(std::deque<Request>& requests) {
  std::list<Request*> open;
  for (Request& request : requests) open.push_back(&request);
  const WakeOnStop wake(mutex_, changed_);
  MutexLock lock(mutex_);
  for (Request& request : requests) {
    auto active = std::make_shared<Active>();
    request.active = active_.try_emplace(request.chunk.id, std::move(active)).first->second;
    request.active->requests.push_back(&request);
  }
  while (true) {
    // Only up to the first request that no drive serves: there may be 10,000 chunks of 1 KiB.
    Request* next = nullptr;
    for (auto at = open.begin(); at != open.end() && next == nullptr;) {
      Request& request = **at;
      if (request.error) return Failure(request.error->within(table_.describe(request.chunk.id)));
      if (!request.done() && !is_served(request)) next = &request;
      at = request.done() ? open.erase(at) : std::next(at);
    }
    if (open.empty()) return {};
    if (stop_asked()) return stopped(table_.describe(open.front()->chunk.id));
    if (next == nullptr) {
      changed_.wait(lock);
      continue;
    }
    Drive drive{.own = *next, .jumps = is_random_access(*next->chunk.array->codecs)};
    next->active->drives.push_back(&drive);
    lock.unlock();
    Result<void> driven;
    std::exception_ptr thrown;
    try {
      driven = this->drive(drive);
    } catch (const std::bad_alloc&) {
      thrown = std::current_exception();
    }
    lock.lock();
    std::erase(next->active->drives, &drive);
    changed_.notify_all();
    if (thrown) std::rethrow_exception(thrown);
    if (!driven) return Failure(driven.error().within(table_.describe(next->chunk.id)));
  }
}

/// Afterwards no thread uses the requests any more.
void DecodedChunks::leave(std::deque<Request>& requests) {
  MutexLock lock(mutex_);
  for (Request& request : requests) {
    if (request.active == nullptr) return;  // nor those behind it
    Active& active = *request.active;
    std::erase(active.requests, &request);
    while (request.copying > 0) changed_.wait(lock);
    if (!active.unused()) continue;
    const auto found = active_.find(request.chunk.id);
    if (found != active_.end() && found->second == request.active) active_.erase(found);
  }
}

/// Whether the request should wait: a drive has not passed its bytes yet, or ends soon. Otherwise
/// its own thread drives.
bool DecodedChunks::is_served(const Request& request) const {
  if (request.wanted.empty()) return true;
  return std::ranges::any_of(request.active->drives, [&](const Drive* drive) {
    if (&drive->own == &request) return false;
    if (!drive->jumps && drive->position <= request.wanted.front().offset) return true;
    const std::uint64_t alone = Drive::left_of(request, 0, drive->jumps);
    const std::uint64_t more = alone > kBlock ? alone - kBlock : 0;
    return drive->left() <= std::max(kBlock, 2 * more);
  });
}

std::vector<WantedBytes> DecodedChunks::take_from_cache(FileId chunk,
                                                        std::vector<WantedBytes> wanted) {
  std::vector<WantedBytes> missing;
  for_each_block(wanted, kBlock, [&](std::uint64_t number, std::span<const WantedBytes> parts) {
    std::shared_ptr<const Block> block;
    {
      const MutexLock lock(mutex_);
      const auto found = blocks_.find({chunk, number});
      if (found != blocks_.end()) {
        Entry& entry = found->second;
        wanted_.splice(wanted_.end(), entry.wanted ? wanted_ : passed_, entry.age);
        entry.wanted = true;
        block = entry.block;
      }
    }
    if (block != nullptr) {
      copy_out(block->span(), number * kBlock, parts);
    } else {
      missing.insert(missing.end(), parts.begin(), parts.end());
    }
  });
  return missing;
}

std::vector<WantedBytes> DecodedChunks::take_from_spill(FileId chunk,
                                                        std::vector<WantedBytes> wanted) const {
  const std::shared_ptr<Spill> spill = this->spill();
  if (spill == nullptr) return wanted;
  std::vector<WantedBytes> missing;
  for_each_block(wanted, kBlock, [&](std::uint64_t number, std::span<const WantedBytes> parts) {
    if (!spill->has({chunk, number})) {
      missing.insert(missing.end(), parts.begin(), parts.end());
      return;
    }
    for (const WantedBytes& piece : parts) {
      if (!spill->get({chunk, number}, piece.offset - number * kBlock, piece.out)) {
        missing.push_back(piece);
      }
    }
  });
  return missing;
}

/// Takes blocks that earlier drives have kept, and that passed before this request came.
void DecodedChunks::take_kept(Request& own) {
  /// Gives back what was not found, whatever happens.
  struct Taken {
    Taken(DecodedChunks& of, Request& own) : chunks(of), request(own) {
      const MutexLock lock(chunks.mutex_);
      wanted.swap(request.wanted);
      ++request.copying;
    }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;
    ~Taken() {
      const MutexLock lock(chunks.mutex_);
      request.wanted.swap(wanted);
      --request.copying;
      chunks.changed_.notify_all();
    }
    DecodedChunks& chunks;
    Request& request;
    std::vector<WantedBytes> wanted;
  };
  Taken taken(*this, own);
  taken.wanted =
      take_from_spill(own.chunk.id, take_from_cache(own.chunk.id, std::move(taken.wanted)));
}

/// A parked decoder that serves the request sooner than a new one would; nullptr: there is none.
std::unique_ptr<DecodedChunks::Decoder> DecodedChunks::take_parked(Active& active,
                                                                   const Request& own) {
  const bool jumps = is_random_access(*own.chunk.array->codecs);
  std::uint64_t least = jumps ? ~std::uint64_t{0} : own.end();
  Active::Parked* best = nullptr;
  for (Active::Parked& parked : active.parked) {
    if (parked.decoder == nullptr) continue;
    const std::uint64_t left = Drive::left_of(own, parked.decoder->position, jumps);
    if (left >= least) continue;
    least = left;
    best = &parked;
  }
  return best == nullptr ? nullptr : std::move(best->decoder);
}

/// Takes a free place, or that of the decoder that was used least recently.
void DecodedChunks::park(Active& active, std::unique_ptr<Decoder> decoder) {
  if (decoder == nullptr) return;
  Active::Parked& place = *std::ranges::min_element(
      active.parked, {},
      [](const Active::Parked& parked) { return parked.decoder == nullptr ? 0 : parked.used; });
  place = {std::move(decoder), ++clock_};
}

/// Decodes until its own request is complete, another drive serves it, or this thread is asked to
/// stop. Gives other requests their parts of the blocks on the way.
Result<void> DecodedChunks::drive(Drive& drive) {
  Request& own = drive.own;
  const CodedChunk& chunk = own.chunk;
  Active& active = *own.active;
  const bool jumps = drive.jumps;
  take_kept(own);
  std::unique_ptr<Decoder> decoder;
  {
    const MutexLock lock(mutex_);
    decoder = take_parked(active, own);
    if (decoder != nullptr) drive.position = decoder->position;
  }
  bool to_end = false;
  std::uint64_t missing = 0;
  while (true) {
    std::optional<std::uint64_t> jump;
    {
      const MutexLock lock(mutex_);
      const bool is_done = own.wanted.empty() || own.error;
      if (is_done && !(to_end && decoder != nullptr)) {
        park(active, std::move(decoder));
        return {};
      }
      if (stop_asked()) {
        park(active, std::move(decoder));
        return Failure(Error(ErrorCode::Stopped, "stopped"));
      }
      if (decoder == nullptr && is_served(own)) return {};
      // Bytes ahead come first: going back means decoding from the beginning.
      if (decoder != nullptr && !own.wanted.empty()) {
        const auto ahead =
            std::ranges::lower_bound(own.wanted, decoder->position, {}, &WantedBytes::offset);
        const bool back = ahead == own.wanted.end();
        const std::uint64_t target = (back ? own.wanted.front() : *ahead).offset / kBlock * kBlock;
        if (back || (jumps && target != decoder->position)) jump = jumps ? target : 0;
      }
    }
    if (decoder == nullptr) {
      to_end = !jumps && goes_to_end(chunk);
      CKFS_TRY_VOID(check_sums(chunk));
      CKFS_TRY(decoder, start(chunk, Stages::All, missing));
      const MutexLock lock(mutex_);
      drive.position = 0;
      drive.to_end = to_end;
      continue;
    }
    if (jump) {
      {
        const MutexLock lock(mutex_);
        drive.position = *jump;
      }
      CKFS_TRY_VOID(decoder->stream->seek(*jump));
      decoder->position = *jump;
      to_end = to_end || (!jumps && goes_to_end(chunk));
      const MutexLock lock(mutex_);
      drive.to_end = to_end;
    }
    const std::uint64_t at = decoder->position;
    const Result<std::size_t> size = decode_next(chunk, *decoder);
    if (!size && decoder->space.missing() > 0) {
      // A later frame needs more memory than the first said.
      missing = decoder->space.missing();
      decoder = nullptr;
      const MutexLock lock(mutex_);
      drive.position = 0;
      continue;
    }
    if (!size) {
      const bool broken = size.error().code() == ErrorCode::Corrupt ||
                          size.error().code() == ErrorCode::Unsupported;
      // Only a jump can reach blocks behind the broken one.
      const std::uint64_t end = jumps ? at + kBlock : ~std::uint64_t{0};
      const MutexLock lock(mutex_);
      for (Request* const request : active.requests) {
        if (broken && !request->in(at, end).empty()) request->error = size.error();
      }
      if (own.wanted.empty() || own.error)
        return {};  // the next reader of the bad block gets the error itself
      return Failure(size.error());
    }
    const bool wanted = deliver(active, *decoder, *size);
    keep(chunk.id, *decoder, *size, wanted);
    decoder->position += *size;
    const bool ended = decoder->position == chunk.array->nbytes;
    if (ended) decoder = nullptr;
    const MutexLock lock(mutex_);
    drive.position = ended ? 0 : decoder->position;
    drive.to_end = to_end && !ended;
    // This drive no longer serves a request that came while its block was copied and kept.
    const bool passed = std::ranges::any_of(active.requests, [&](const Request* request) {
      return request != &own && !request->wanted.empty() && request->wanted.front().offset <= at;
    });
    if (passed) changed_.notify_all();
  }
}

/// Whether to decode a chunk that is begun now to its end: there is room for it, and it was begun
/// before, or all of it will be needed.
bool DecodedChunks::goes_to_end(const CodedChunk& chunk) {
  const MutexLock lock(mutex_);
  if (spill_ == nullptr || spill_->room() < chunk.array->nbytes) return false;
  const std::size_t number = chunk.id - kFirstChunkFile;
  if (begun_.size() <= number) begun_.resize(static_cast<std::size_t>(table_.count()));
  const bool again = begun_[number];
  begun_[number] = true;
  return again || whole_;
}

/// Checksums lie behind their bytes: no byte of the chunk is given out before they are checked.
Result<void> DecodedChunks::check_sums(const CodedChunk& chunk) {
  if (!has_sums(*chunk.array->codecs) || is_summed(chunk.id)) return {};
  std::uint64_t missing = 0;
  while (true) {
    CKFS_TRY(const std::unique_ptr<Decoder> decoder, start(chunk, Stages::Sums, missing));
    const TierScope holding(Tier::Source);
    Result<std::size_t> size = decoder->block.size();
    while (size && *size == decoder->block.size()) {
      if (stop_asked()) return Failure(Error(ErrorCode::Stopped, "stopped"));
      size = decoder->stream->read(decoder->block.span());
    }
    if (!size && decoder->space.missing() > 0) {
      missing = decoder->space.missing();
      continue;
    }
    if (!size) return Failure(size.error());
    const MutexLock lock(mutex_);
    const std::size_t number = chunk.id - kFirstChunkFile;
    if (summed_.size() <= number) summed_.resize(static_cast<std::size_t>(table_.count()));
    summed_[number] = true;
    return {};
  }
}

/// A decoder with a work space of `least` bytes or more. The size that a chunk's header asks for is
/// remembered for the others of its array once the budget has given it: the header may lie.
Result<std::unique_ptr<DecodedChunks::Decoder>> DecodedChunks::start(const CodedChunk& chunk,
                                                                     Stages stages,
                                                                     std::uint64_t least) {
  std::uint64_t usual = usual_work_space(*chunk.array->codecs, stored_size(chunk.stored));
  {
    const MutexLock lock(mutex_);
    const auto known = work_space_.find(chunk.array);
    if (known != work_space_.end()) usual = known->second;
  }
  std::uint64_t needed = std::max(usual, least);
  while (true) {
    const std::array<std::size_t, 2> sizes{
        static_cast<std::size_t>(needed),
        static_cast<std::size_t>(std::min(kBlock, chunk.array->nbytes))};
    CKFS_TRY(std::vector<Buffer> buffers, pool_->acquire(Tier::Source, sizes));
    auto decoder = std::make_unique<Decoder>(std::move(buffers));
    const TierScope holding(Tier::Source);
    auto stream = open_stream(chunk.stored, *chunk.array->codecs, stages, decoder->space,
                              chunk.array->nbytes);
    if (decoder->space.missing() > 0) {
      needed = decoder->space.missing();
      continue;
    }
    CKFS_TRY(decoder->stream, std::move(stream));
    if (needed > usual) {
      const MutexLock lock(mutex_);
      work_space_[chunk.array] = needed;
    }
    return decoder;
  }
}

/// Decodes the next block into the decoder's buffer. After the last one, checks that the chunk ends
/// there.
Result<std::size_t> DecodedChunks::decode_next(const CodedChunk& chunk, Decoder& decoder) {
  const TierScope holding(Tier::Source);
  const std::uint64_t nbytes = chunk.array->nbytes;
  const auto block = decoder.block.span().first(
      static_cast<std::size_t>(std::min(kBlock, nbytes - decoder.position)));
  CKFS_TRY(const std::size_t size, decoder.stream->read(block));
  {
    const MutexLock lock(mutex_);
    decoded_ += size;
  }
  if (size < block.size()) {
    return fail(ErrorCode::Corrupt, "decodes to {} bytes, expected {}", decoder.position + size,
                nbytes);
  }
  if (decoder.position + size == nbytes) {
    std::array<std::byte, 1> more{};
    CKFS_TRY(const std::size_t behind, decoder.stream->read(more));
    if (behind > 0) {
      return fail(ErrorCode::Corrupt, "decodes to more than {} bytes", nbytes);
    }
  }
  return size;
}

/// Copies the requests' parts of the block just decoded. False: no request wants any.
bool DecodedChunks::deliver(Active& active, const Decoder& decoder, std::size_t size) {
  const std::uint64_t begin = decoder.position;
  std::vector<std::pair<Request*, std::vector<WantedBytes>>> parts;
  {
    const MutexLock lock(mutex_);
    for (Request* const request : active.requests) {
      if (request->error) continue;
      const auto here = request->in(begin, begin + size);
      if (!here.empty()) parts.emplace_back(request, std::vector(here.begin(), here.end()));
    }
    // Nothing throws from here on.
    for (const auto& [request, wanted] : parts) {
      const auto here = request->in(begin, begin + size);
      const auto first = request->wanted.begin() + (here.data() - request->wanted.data());
      request->wanted.erase(first, first + static_cast<std::ptrdiff_t>(here.size()));
      ++request->copying;  // so that it stays
    }
  }
  for (const auto& [request, wanted] : parts) {
    copy_out(decoder.block.span().first(size), begin, wanted);
  }
  if (parts.empty()) return false;
  const MutexLock lock(mutex_);
  for (const auto& [request, wanted] : parts) --request->copying;
  changed_.notify_all();
  return true;
}

/// Keeps the block in memory if there is room, else in the spill. Without a spill it may take the
/// place of an older block: any block that no request wanted, or, for a wanted block, any other.
void DecodedChunks::keep(FileId chunk, Decoder& decoder, std::size_t size, bool wanted) {
  const Key key{chunk, decoder.position / kBlock};
  const std::shared_ptr<Spill> spill = this->spill();
  {
    const MutexLock lock(mutex_);
    if (blocks_.contains(key)) return;  // a chunk that was begun again
  }
  if (spill != nullptr && spill->has({key.chunk, key.block})) return;
  std::optional<Buffer> fresh = pool_->try_acquire(Tier::Source, decoder.block.size());
  if (!fresh && spill != nullptr &&
      spill->put({key.chunk, key.block}, decoder.block.span().first(size))) {
    return;
  }
  std::shared_ptr<const Block> old;
  if (!fresh) {
    const MutexLock lock(mutex_);
    old = oldest_unused(passed_);
    if (old == nullptr && wanted) old = oldest_unused(wanted_);
  }
  if (!fresh && old != nullptr) {
    // No other thread has it any more: its buffer can be used like a new one.
    Buffer& buffer = const_cast<Block&>(*old).buffer;
    if (buffer.size() == decoder.block.size()) {
      fresh = std::move(buffer);
    } else {
      old.reset();
      fresh = pool_->try_acquire(Tier::Source, decoder.block.size());
    }
  }
  if (!fresh) return;
  auto block = std::make_shared<Block>();
  block->buffer = std::exchange(decoder.block, *std::move(fresh));
  block->size = size;
  Ages age{key};  // made before the entry, which always has one
  const MutexLock lock(mutex_);
  const auto [entry, added] = blocks_.try_emplace(key);
  if (!added) return;
  entry->second = {std::move(block), wanted, age.begin()};
  Ages& ages = wanted ? wanted_ : passed_;
  ages.splice(ages.end(), age);
}

/// Removes the first block of a list that no thread reads; nullptr: there is none.
std::shared_ptr<const DecodedChunks::Block> DecodedChunks::oldest_unused(Ages& ages) {
  for (auto age = ages.begin(); age != ages.end(); ++age) {
    const auto found = blocks_.find(*age);
    if (found->second.block.use_count() > 1) continue;
    std::shared_ptr<const Block> block = std::move(found->second.block);
    blocks_.erase(found);
    ages.erase(age);
    return block;
  }
  return nullptr;
}

/// Evicts the first block of a list that no thread reads, into the spill if there is one: it is
/// there before it is gone from here. Gives its bytes; 0: there is none.
std::uint64_t DecodedChunks::drop_oldest(Ages DecodedChunks::* list) {
  const std::shared_ptr<Spill> spill = this->spill();
  MutexLock lock(mutex_);
  Ages& ages = this->*list;
  if (spill == nullptr) {
    const std::shared_ptr<const Block> block = oldest_unused(ages);
    return block == nullptr ? 0 : block->buffer.counted();
  }
  while (true) {
    const auto age = std::ranges::find_if(ages, [&](const Key& key) CKFS_REQUIRES(mutex_) {
      return blocks_.at(key).block.use_count() == 1;
    });
    if (age == ages.end()) return 0;
    const Key key = *age;
    const std::shared_ptr<const Block> block = blocks_.at(key).block;
    lock.unlock();
    if (!spill->has({key.chunk, key.block})) {
      (void)spill->put({key.chunk, key.block}, block->span());
    }
    lock.lock();
    const auto found = blocks_.find(key);
    // Another thread may read it by now, or have forgotten it.
    if (found == blocks_.end() || found->second.block != block || block.use_count() > 2) continue;
    (found->second.wanted ? wanted_ : passed_).erase(found->second.age);
    blocks_.erase(found);
    return block->buffer.counted();
  }
}

std::unique_ptr<DecodedChunks::Decoder> DecodedChunks::oldest_decoder() {
  auto of = active_.end();
  Active::Parked* oldest = nullptr;
  for (auto at = active_.begin(); at != active_.end(); ++at) {
    for (Active::Parked& parked : at->second->parked) {
      if (parked.decoder == nullptr || (oldest != nullptr && oldest->used <= parked.used)) continue;
      oldest = &parked;
      of = at;
    }
  }
  if (oldest == nullptr) return nullptr;
  std::unique_ptr<Decoder> decoder = std::move(oldest->decoder);
  if (of->second->unused()) active_.erase(of);
  return decoder;
}

/// Decoders go last: to get one back means decoding from the beginning.
void DecodedChunks::reclaim(std::uint64_t bytes, BufferPool::Demand demand) {
  std::uint64_t freed = 0;
  while (freed < bytes) {
    std::uint64_t block = drop_oldest(&DecodedChunks::passed_);
    if (demand == BufferPool::Demand::Waits && block == 0)
      block = drop_oldest(&DecodedChunks::wanted_);
    if (block == 0) break;
    freed += block;
  }
  const MutexLock lock(mutex_);
  while (demand == BufferPool::Demand::Waits && freed < bytes) {
    const std::unique_ptr<Decoder> decoder = oldest_decoder();
    if (decoder == nullptr) break;
    freed += decoder->memory.counted() + decoder->block.counted();
  }
}

void DecodedChunks::clear(const std::function<bool()>& still) {
  std::size_t left = 0;
  {
    const MutexLock lock(mutex_);
    left = blocks_.size();
  }
  while (left > 0 && still() &&
         (drop_oldest(&DecodedChunks::passed_) > 0 || drop_oldest(&DecodedChunks::wanted_) > 0)) {
    --left;
  }
  const MutexLock lock(mutex_);
  while (still() && oldest_decoder() != nullptr) {
  }
}

void DecodedChunks::forget(std::span<const FileId> chunks) {
  if (const std::shared_ptr<Spill> spill = this->spill()) {
    for (const FileId chunk : chunks) spill->forget(chunk);
  }
  const MutexLock lock(mutex_);
  for (const FileId chunk : chunks) {
    if (chunk - kFirstChunkFile < begun_.size()) begun_[chunk - kFirstChunkFile] = false;
    for (auto at = blocks_.lower_bound({chunk, 0});
         at != blocks_.end() && at->first.chunk == chunk;) {
      Entry& entry = at->second;
      (entry.wanted ? wanted_ : passed_).erase(entry.age);
      at = blocks_.erase(at);
    }
    const auto found = active_.find(chunk);
    if (found == active_.end()) continue;
    for (Active::Parked& parked : found->second->parked) parked.decoder.reset();
    if (found->second->unused()) active_.erase(found);
  }
}

bool DecodedChunks::add_spill(std::shared_ptr<Spill> spill, bool whole) {
  const MutexLock lock(mutex_);
  if (spill_ != nullptr) return false;
  whole_ = whole;
  spill_ = std::move(spill);
  return true;
}

void DecodedChunks::remove_spill() {
  const MutexLock lock(mutex_);
  whole_ = false;
  spill_ = nullptr;
}

std::shared_ptr<Spill> DecodedChunks::spill() const {
  const MutexLock lock(mutex_);
  return spill_;
}

bool DecodedChunks::is_summed(FileId chunk) const {
  const std::size_t number = chunk - kFirstChunkFile;
  const MutexLock lock(mutex_);
  return number < summed_.size() && summed_[number];
}

std::uint64_t DecodedChunks::decoded() const {
  const MutexLock lock(mutex_);
  return decoded_;
}

}  // namespace ckfs
