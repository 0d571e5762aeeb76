// One request, from top to bottom: note where its reader is, start the work for its next requests,
// then look at each unit that the request touches. If a unit is ready or being computed, its bytes
// are lent out. Otherwise this thread computes them itself, straight into the reply.
//
// Memory: a request takes its reply (Tier::Reply) in one piece and may then wait for scratch or for
// a tile (Tier::Tile); the computing thread waits for the source only. Work ahead of readers never
// waits for memory: without it, it is dropped. Bytes that are being delivered count as lent
// (deliver()). memory/buffer_pool.h enforces the order.
#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <malloc.h>
#include <new>
#include <spdlog/spdlog.h>
#include <thread>

#include "base/log_limit.h"
#include "base/mutex.h"
#include "base/start_thread.h"
#include "base/stop.h"
#include "base/units.h"
#include "engine/evaluator.h"
#include "engine/workers.h"
#include "memory/tile_cache.h"

namespace ckfs {
namespace {

/// One page in so many bytes is not delivered. It costs the reader a round trip; without any, its
/// position would be unknown.
constexpr std::uint64_t kSignpost = 2_MiB;

/// Pieces that are read at once: of a source that streams; and of a disk that is read past the page
/// cache, where no hint brings bytes in before the read.
constexpr std::size_t kMostTogether = 8;
constexpr std::size_t kMostPastCache = 4;
/// What a source that is far away is asked for at once: at 20 ms and 50 MB/s a connection, a
/// request for 16 MiB spends a sixteenth of its time on the way. And how much of it may be under
/// way for one reader, as far as there is room.
constexpr std::uint64_t kFarStep = 16_MiB;
constexpr std::uint64_t kFarAhead = 256_MiB;
/// Towards the end of a file a step is such a part of the rest, and no less than kLastStep:
/// steps that are under way together end together, and no connection is idle while another brings
/// the last.
constexpr std::uint64_t kLastSteps = 16;
constexpr std::uint64_t kLastStep = 8_MiB;

/// Whether several readers take turns. Then one computes while another waits, so CPUs are scarce,
/// and reading past the page cache takes a fifth of the CPU time. A reader that waits alone is
/// better served by hints, which bring in more than is computed ahead. Safe for concurrent use;
/// threads that meet may lose a step.
class ReaderTurns {
 public:
  void taken_by(const ReadStream& stream) {
    const bool other = last_.exchange(&stream, std::memory_order_relaxed) != &stream;
    const int score = score_.load(std::memory_order_relaxed);
    score_.store(other ? std::min(score + kTurn, kMost) : std::max(score - 1, 0),
                 std::memory_order_relaxed);
  }
  bool crowded() const { return score_.load(std::memory_order_relaxed) >= kMost / 2; }

 private:
  /// After a few requests in a row of one reader (for pages that were not delivered), the next must
  /// be another reader's.
  static constexpr int kTurn = 16;
  static constexpr int kMost = 64;
  std::atomic<const ReadStream*> last_{nullptr};  // never looked into
  std::atomic<int> score_{0};
};

/// Scratch of one thread that gathers, within `room` for tiles; buffers are counted in MiB.
constexpr std::uint64_t scratch_within(std::uint64_t room) {
  return std::min<std::uint64_t>(Evaluator::kMostStaging + 1_MiB, room / 4);
}

unsigned thread_count(const EngineOptions& options) {
  if (options.threads != 0) return options.threads;
  return std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace

TileBytes tile_bytes(std::uint64_t room, std::uint64_t wanted) {
  if (wanted != 0) {
    const std::uint64_t bytes = std::min(wanted, room / 2);
    return {bytes, bytes};
  }
  const std::uint64_t scratch = scratch_within(room);
  return {std::min<std::uint64_t>(room / 2 - scratch, 64_MiB), room - scratch};
}

class Engine::Impl {
 public:
  Impl(std::shared_ptr<const Catalog> catalog, ByteSource& source, std::shared_ptr<BufferPool> pool,
       const EngineOptions& options)
      : catalog_(std::move(catalog)),
        source_(source),
        pool_(std::move(pool)),
        look_(options.look),
        rest_too_(options.rest),
        cache_(*pool_, options.tile_store),
        workers_(thread_count(options)),
        evaluator_(*catalog_, source, *pool_, cache_, workers_,
                   tile_bytes(pool_->most(Tier::Tile), options.tile_bytes), options.kernels) {}

  ~Impl() {
    // Tasks use everything here.
    workers_.stop();
    stopping_.store(true);
    {
      const MutexLock lock(rest_mutex_);  // so that it is not between its look and its sleep
    }
    rest_changed_.notify_all();
    if (rest_.joinable()) rest_.join();
  }

  Result<Bytes> read(ReadStream& stream, ByteRange range) {
    const Inside inside(*this, range);
    if (range.empty()) return Bytes();
    const ReadStream::Advice advice = follow(stream, range);
    auto bytes = or_failure("reading", [&] { return answer(stream, range, advice); });
    if (!bytes && bytes.error().code() == ErrorCode::Stopped) stream.stop_ahead();
    ended(stream, range, advice, bytes.has_value());
    return bytes;
  }

  Result<void> read(ReadStream& stream, ByteRange range, std::span<std::byte> out) {
    const Inside inside(*this, range);
    // In windows, so that work ahead follows the reader through a large request.
    constexpr std::uint64_t kWindow = 4 * kPieceBytes;
    for (ByteRange window = range; window.begin < range.end; window.begin = window.end) {
      window.end = std::min(range.end, (window.begin / kWindow + 1) * kWindow);
      const ReadStream::Advice advice = follow(stream, window);
      const auto part = out.subspan(window.begin - range.begin, window.size());
      const auto filled = or_failure("reading", [&] { return fill(stream, window, part, advice); });
      if (!filled && filled.error().code() == ErrorCode::Stopped) stream.stop_ahead();
      ended(stream, window, advice, filled.has_value());
      if (!filled) return filled;
    }
    return {};
  }

  std::shared_ptr<ReadStream> open(std::shared_ptr<const FileLayout> file, StreamOptions options) {
    const FileLayout* layout = file.get();
    // When the last owner lets go, what was computed for this reader goes too.
    std::shared_ptr<ReadStream> opened{
        new ReadStream(
            std::move(file), std::move(options),
            [this, layout](std::uint64_t offset) { return evaluator_.unit_at(*layout, offset); },
            habit_),
        [this](ReadStream* stream) {
          const std::unique_ptr<ReadStream> owner(stream);
          try {
            forget(*stream, stream->abandon());
          } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
            // They grow old in the cache instead.
          }
        }};
    // Workers own it, too, while they compute ahead: the reader is gone before them.
    struct Reader {
      explicit Reader(std::shared_ptr<ReadStream> of) : stream(std::move(of)) {}
      Reader(const Reader&) = delete;
      Reader& operator=(const Reader&) = delete;
      ~Reader() { stream->stop_ahead(); }
      const std::shared_ptr<ReadStream> stream;
    };
    auto reader = std::make_shared<const Reader>(std::move(opened));
    return {reader, reader->stream.get()};
  }

  EngineStatistics statistics() const {
    EngineStatistics statistics;
    statistics.requests = requests_.load(std::memory_order_relaxed);
    statistics.bytes_to_readers = bytes_.load(std::memory_order_relaxed);
    statistics.tiles = cache_.computed();
    statistics.tiles_unread = cache_.unread();
    statistics.hits = cache_.hits();
    statistics.memory = pool_->held();
    statistics.memory_peak = pool_->peak();
    statistics.memory_budget = pool_->limit();
    return statistics;
  }

 private:
  /// Counts a request while it lasts: the engine is not at rest while one waits for a slow source.
  class Inside {
   public:
    Inside(Impl& engine, ByteRange range) : engine_(engine) {
      engine_.inside_.fetch_add(1, std::memory_order_relaxed);
      engine_.bytes_.fetch_add(range.size(), std::memory_order_relaxed);
      // Counts, then looks; give_back_when_idle() rests, then looks. All four have one order, or
      // both threads could see the old state.
      engine_.requests_.fetch_add(1);
      if (engine_.resting_.load()) engine_.wake();
    }
    ~Inside() { engine_.inside_.fetch_sub(1, std::memory_order_relaxed); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    Impl& engine_;
  };

  /// Bytes that go to the view's page cache are not left in the source's as well: to get memory for
  /// both took a cold reader longer than to read the disk.
  Want want_of(const ReadStream& stream, bool sequential) const {
    const bool once = stream.options().once;
    const bool delivered = sequential && stream.options().deliver;
    return {.sequential = sequential,
            .once = once,
            .delivered = delivered,
            .padded = (once || delivered) && turns_.crowded(),
            .keep_scales = stream.options().whole};
  }

  static TileKey piece_key(const FileLayout& file, std::uint64_t begin) {
    return {file.serial, TileKey::Kind::Piece, 0, begin};
  }

  /// A tile serves other readers, too, until its memory is needed; not where a program copies the
  /// whole file: then fresh memory would cost more than to compute a tile again.
  void forget(const ReadStream& stream, std::span<const std::uint64_t> units) {
    const FileLayout& file = stream.file();
    for (const std::uint64_t unit : units) {
      if (file.piece_at(unit) == evaluator_.unit_at(file, unit)) {
        cache_.drop(piece_key(file, unit));
      } else if (stream.options().whole && stream.options().once) {
        evaluator_.drop_tile(file, unit);
      } else {
        evaluator_.retire_tile(file, unit);
      }
    }
  }

  /// How the source likes to be asked for the next bytes. The file that was late speaks for all: a
  /// checkpoint's weights lie on one file system.
  SourceWish wish_of(const ReadStream& stream) const {
    const SourcePace& pace = evaluator_.pace();
    const std::uint64_t room = pool_->most(Tier::Tile);
    SourceWish wish{
        .ahead = pace.ahead(), .far = pace.far(), .room = room - 2 * scratch_within(room)};
    wish.share = wish.room / 4;
    if (wish.ahead == 0) {
      wish.ahead = stream.options().whole ? SourcePace::kLeast : 0;
      return wish;
    }
    const SourceTraits traits = source_.traits(pace.late());
    if (traits.is_far) wish.ahead = kFarAhead;
    wish.in_order = traits.streams;
    // A disk that gives all it can answers late as well. For a server across a network one late
    // answer is enough: the next would be as late.
    wish.far = traits.is_far || traits.streams || (wish.far && !traits.heeds_hints);
    if (wish.far && !wish.in_order) {
      wish.step = kFarStep;
      if (!turns_.crowded()) wish.share = wish.room / 2;
    }
    return wish;
  }

  static bool is_piece(const ReadStream& stream, ByteRange unit) {
    return stream.file().piece_at(unit.begin) == unit;
  }

  /// Runs `ahead`, which only makes a reader faster, as far as there is memory for it. The request
  /// is answered in any case.
  template <typename Ahead>
  static void while_memory_lasts(Ahead ahead) {
    try {
      ahead();
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
      // Tasks that were queued before stay.
    }
  }

  /// Notes the request, and starts the work for the reader's next ones.
  ReadStream::Advice follow(ReadStream& stream, ByteRange range) {
    turns_.taken_by(stream);
    ReadStream::Advice advice;
    while_memory_lasts([&] {
      const SourceWish wish = wish_of(stream);
      advice = stream.advise(range, wish);
      start_ahead(stream, range, wish, advice);
    });
    return advice;
  }

  void start_ahead(ReadStream& stream, ByteRange range, SourceWish wish,
                   const ReadStream::Advice& advice) {
    const bool past_cache = wish.ahead > 0 && want_of(stream, true).padded &&
                            source_.traits(evaluator_.pace().late()).reads_past_cache;
    if (!advice.hint.empty()) {
      // Pieces that are computed ahead as a whole are read past the page cache; hints would fill
      // it.
      const bool padded = past_cache && advice.whole_until >= range.end + 2 * kPieceBytes;
      workers_.add([this, weak = stream.weak_from_this(), hint = advice.hint, padded] {
        const auto alive = weak.lock();
        if (!alive) return;
        const FileLayout& file = alive->file();
        const auto parts =
            padded ? evaluator_.not_padded(file, hint) : std::vector<ByteRange>{hint};
        for (const ByteRange& part : parts) {
          source_.will_need(evaluator_.source_ranges(file, part));
        }
      });
    }
    // A source that streams is read by one thread while the others decode; one that is only far
    // away by as many threads as there are pieces.
    const auto kind = wish.far && !wish.in_order ? Workers::Kind::Waits : Workers::Kind::Computes;
    for (std::size_t next = 0; next < advice.start.size();) {
      const std::uint64_t left = stream.file().size - advice.start[next].begin;
      const std::size_t together =
          wish.in_order ? kMostTogether
          : past_cache  ? kMostPastCache
          : wish.step > 0
              ? std::clamp(left / kLastSteps, std::min(kLastStep, wish.step), wish.step) /
                    kPieceBytes
              : 1;
      std::vector<ByteRange> units;
      do {
        units.push_back(advice.start[next++]);
      } while (next < advice.start.size() && units.size() < together &&
               units.back().end == advice.start[next].begin && is_piece(stream, units.back()) &&
               is_piece(stream, advice.start[next]));
      workers_.add(
          [this, weak = stream.weak_from_this(), stop = stream.ahead(), units = std::move(units)] {
            // A stream that was closed before is skipped.
            const auto alive = weak.lock();
            const StopScope scope(stop);
            if (alive && !stop_asked()) compute_ahead(*alive, units);
          },
          kind);
    }
  }

  /// Not earlier: the request may be answered from the units that it passed. A failed request has
  /// passed them, too: the stream no longer remembers them.
  void ended(ReadStream& stream, ByteRange range, const ReadStream::Advice& advice, bool answered) {
    while_memory_lasts([&] {
      forget(stream, advice.passed);
      if (answered) forget(stream, stream.answered(range));
    });
  }

  Result<Bytes> answer(ReadStream& stream, ByteRange range, const ReadStream::Advice& advice) {
    const ByteRange unit = stream.file().piece_at(range.begin);
    if (unit.contains(range)) {
      CKFS_TRY(const auto tile, ready_piece(stream, unit, range, advice));
      if (tile) return Bytes(tile->span().subspan(range.begin - unit.begin, range.size()), tile);
    }
    CKFS_TRY(Buffer reply, logged(stream, range, pool_->acquire(Tier::Reply, range.size())));
    const TierScope holding(Tier::Reply);
    CKFS_TRY_VOID(fill(stream, range, reply.span(), advice));
    const std::span<const std::byte> bytes = reply.span();
    return Bytes(bytes, std::make_shared<const Buffer>(std::move(reply)));
  }

  /// Fills `out` unit by unit: from ready tiles, or by computing.
  Result<void> fill(ReadStream& stream, ByteRange range, std::span<std::byte> out,
                    const ReadStream::Advice& advice) {
    const FileLayout& file = stream.file();
    ByteRange missing{range.begin, range.begin};  // to be computed in one call
    const auto compute_missing = [&]() -> Result<void> {
      if (missing.empty()) return {};
      return logged(
          stream, missing,
          evaluator_.fill(file, missing, out.subspan(missing.begin - range.begin, missing.size()),
                          want_of(stream, advice.sequential)));
    };
    while (missing.end < range.end) {
      const ByteRange piece = file.piece_at(missing.end);
      const ByteRange here = piece.intersect({missing.end, range.end});
      CKFS_TRY(auto tile, ready_piece(stream, piece, here, advice));
      if (!tile) {
        missing.end = here.end;
        continue;
      }
      std::memcpy(out.data() + (here.begin - range.begin),
                  tile->span().data() + (here.begin - piece.begin), here.size());
      tile.reset();  // computing may wait for memory of its tier
      CKFS_TRY_VOID(compute_missing());
      missing = {here.end, here.end};
    }
    return compute_missing();
  }

  /// The piece, if it is ready or being computed; also if it is worth computing as a whole for the
  /// part `here` of it. nullptr: compute just the part.
  Result<std::shared_ptr<const Tile>> ready_piece(ReadStream& stream, ByteRange piece,
                                                  ByteRange here,
                                                  const ReadStream::Advice& advice) {
    const FileLayout& file = stream.file();
    const TileKey key = piece_key(file, piece.begin);
    auto tile = cache_.find(key);
    if (!tile) {
      const bool whole = here != piece && advice.sequential && piece.end <= advice.whole_until &&
                         stream.wants(piece.begin) &&
                         evaluator_.unit_at(file, piece.begin) == piece;
      if (!whole) return std::shared_ptr<const Tile>();
      bool own = false;
      auto computed = cache_.get(key, [&] {
        own = true;
        return evaluator_.piece(file, piece, want_of(stream, advice.sequential));
      });
      // Perhaps only memory was short; computing just the part gives the true error.
      if (!computed) return std::shared_ptr<const Tile>();
      tile = *std::move(computed);
      // Only the thread that computed a piece delivers it: it can be lent once.
      if (own && stream.takes_deliveries()) {
        while_memory_lasts([&] {
          workers_.add([this, weak = stream.weak_from_this(), piece, made = std::weak_ptr(tile)] {
            if (const auto alive = weak.lock()) deliver(*alive, piece, made);
          });
        });
      }
    }
    CKFS_TRY_VOID(logged(stream, here, evaluator_.verify(tile->files)));
    return tile;
  }

  /// A worker's task: one tile, or pieces one after another. Errors are not kept: the reader meets
  /// them itself.
  void compute_ahead(ReadStream& stream, std::span<const ByteRange> units) {
    const FileLayout& file = stream.file();
    const Want want = want_of(stream, true);
    // Units that the reader has reached by itself are skipped.
    std::vector<ByteRange> wanted;
    std::vector<TileKey> keys;
    for (const ByteRange& unit : units) {
      if (!stream.wants(unit.begin)) continue;
      if (!is_piece(stream, unit)) {
        evaluator_.make_tile(file, unit.begin, want, [&] { return stream.wants(unit.begin); });
        return;
      }
      wanted.push_back(unit);
      keys.push_back(piece_key(file, unit.begin));
    }
    // Delivered when all are computed: the kernel may have locked a page of one for a request that
    // waits for another.
    std::vector<std::pair<ByteRange, std::weak_ptr<const Tile>>> made;
    (void)cache_.compute(
        keys, [&](std::span<const std::size_t> numbers, const TileCache::Ready& ready) {
          // Asked again now that other threads see this computation: a reader that came before it
          // computes the piece itself, one that comes after it waits.
          std::vector<std::size_t> mine;
          std::vector<ByteRange> pieces;
          for (const std::size_t number : numbers) {
            if (!stream.wants(wanted[number].begin)) continue;
            mine.push_back(number);
            pieces.push_back(wanted[number]);
          }
          return evaluator_.pieces(file, pieces, want, [&](std::size_t k, Tile tile) {
            made.emplace_back(pieces[k], ready(mine[k], std::move(tile)));
          });
        });
    if (stream.takes_deliveries()) {
      for (const auto& [piece, tile] : made) deliver(stream, piece, tile);
    }
    // The reader jumped away; drop tiles that it will not reach.
    for (const auto& [piece, tile] : made) {
      if (!stream.wants(piece.begin)) cache_.retire(piece_key(file, piece.begin));
    }
  }

  /// Puts the pages of a piece where the reader finds them without asking, except one every
  /// kSignpost bytes: the request for that page shows the reader's position.
  ///
  /// This may wait for a page that the kernel has locked for a request, and that request may wait
  /// for memory of Tier::Tile. So a piece counts as lent while it is delivered, and is not held
  /// while it waits for delivery.
  void deliver(ReadStream& stream, ByteRange piece, const std::weak_ptr<const Tile>& made) {
    const std::shared_ptr<const Tile> tile = made.lock();
    if (tile == nullptr) return;
    const auto lent = pool_->try_lend(tile->buffer.counted());
    if (!lent || !evaluator_.verify(tile->files)) return;
    const std::uint64_t first = (piece.begin + kPage - 1) / kPage * kPage;
    const std::uint64_t begin = piece.begin % kSignpost == 0 ? first + kPage : first;
    const std::uint64_t end =
        piece.end == stream.file().size ? piece.end : piece.end / kPage * kPage;
    if (begin >= end) return;
    if (stream.options().deliver(begin, tile->span().subspan(begin - piece.begin, end - begin))) {
      stream.delivered(piece.begin, end - begin);
      cache_.given(piece_key(stream.file(), piece.begin));
    }
  }

  /// Reports to the operator an error that a reader only sees as an errno: file and offset (in the
  /// message) and tensor. A stale file was reported where it was found.
  template <typename T>
  Result<T> logged(const ReadStream& stream, ByteRange range, Result<T> result) {
    if (!result && result.error().code() != ErrorCode::Stale &&
        result.error().code() != ErrorCode::Stopped) {
      log_failure(stream.file(), range, result.error());
    }
    return result;
  }

  void log_failure(const FileLayout& file, ByteRange range, const Error& error) {
    const std::string_view thing =
        std::string_view(error.message()).substr(0, error.message().find(": "));
    const auto suppressed = failures_.admit(
        fmt::format("{} {} {}", static_cast<int>(error.code()), error.system_error(), thing));
    if (!suppressed) return;
    constexpr std::size_t kMostNamed = 8;
    std::string tensors;
    std::size_t count = 0;
    for (std::size_t k = file.find(range.begin); k < file.segments.size(); ++k) {
      const Segment& segment = file.segments[k];
      if (segment.begin >= range.end) break;
      if (segment.kind != Segment::Kind::Tensor || count++ >= kMostNamed) continue;
      tensors += fmt::format("{}\"{}\"", tensors.empty() ? "tensor " : ", ",
                             file.definition->tensors[file.tensor(segment.id)].name);
    }
    if (count > kMostNamed) tensors += fmt::format(" and {} more", count - kMostNamed);
    spdlog::error("{} (reading {} {}, {}){}", error.message(), file.path, range,
                  tensors.empty() ? "no tensor" : tensors, suppressed_note(*suppressed));
  }

  // Giving memory back: a thread looks every few seconds while there are readers, and sleeps until
  // the next read when nothing is left to give.

  void wake() {
    const MutexLock lock(rest_mutex_);
    if (!resting_.load(std::memory_order_relaxed)) return;
    resting_.store(false, std::memory_order_relaxed);
    if (rest_.joinable()) {
      rest_changed_.notify_all();
      return;
    }
    if (auto thread = start_thread([this] { give_back_when_idle(); })) {
      rest_ = *std::move(thread);
    } else {
      resting_.store(true, std::memory_order_relaxed);  // the next read tries again
    }
  }

  void give_back_when_idle() {
    MutexLock lock(rest_mutex_);
    std::uint64_t seen = 0;
    int quiet = 0;
    while (!stopping_.load()) {
      if (resting_.load(std::memory_order_relaxed)) {
        rest_changed_.wait(lock);
        quiet = 0;
        continue;
      }
      (void)rest_changed_.wait_until(lock, std::chrono::steady_clock::now() + look_);
      const std::uint64_t now = requests_.load(std::memory_order_relaxed);
      quiet = now == seen && inside_.load(std::memory_order_relaxed) == 0 ? quiet + 1 : 0;
      seen = now;
      if (quiet < kQuietLooks) continue;
      try {
        cache_.clear();
        source_.rest([&] { return !stopping_.load() && requests_.load() == seen; });
        pool_->trim();  // also of what the source has given back
        if (rest_too_) rest_too_();
      } catch (const std::bad_alloc&) {
        continue;  // giving back may take some memory, too: at the next look, then
      }
      // What allocations of a request have left in the heap's arenas.
      ::malloc_trim(0);
      resting_.store(true);
      // A request that was counted before it could see that is not forgotten.
      if (requests_.load() != seen) resting_.store(false, std::memory_order_relaxed);
    }
  }

  static constexpr int kQuietLooks = 3;

  const std::shared_ptr<const Catalog> catalog_;
  ByteSource& source_;
  const std::shared_ptr<BufferPool> pool_;
  const std::chrono::milliseconds look_;
  const std::function<void()> rest_too_;
  const std::shared_ptr<ReaderHabit> habit_ = std::make_shared<ReaderHabit>();
  TileCache cache_;
  LogLimit failures_;
  ReaderTurns turns_;
  std::atomic<std::uint64_t> requests_{0};
  std::atomic<std::uint64_t> inside_{0};  // requests that last
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<bool> resting_{true};
  Mutex rest_mutex_;
  CondVar rest_changed_;
  std::atomic<bool> stopping_{false};
  std::thread rest_ CKFS_GUARDED_BY(rest_mutex_);
  Workers workers_;
  Evaluator evaluator_;
};

Engine::Engine(std::shared_ptr<const Catalog> catalog, ByteSource& source,
               std::shared_ptr<BufferPool> pool, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(catalog), source, std::move(pool), options)) {}

Engine::~Engine() = default;

std::shared_ptr<ReadStream> Engine::open_stream(std::shared_ptr<const FileLayout> file,
                                                StreamOptions options) {
  return impl_->open(std::move(file), std::move(options));
}

Result<Bytes> Engine::read(ReadStream& stream, ByteRange range) {
  return or_failure("reading", [&] { return impl_->read(stream, range); });
}

Result<void> Engine::read(ReadStream& stream, ByteRange range, std::span<std::byte> out) {
  CKFS_CHECK(out.size() == range.size());
  return or_failure("reading", [&] { return impl_->read(stream, range, out); });
}

EngineStatistics Engine::statistics() const {
  return impl_->statistics();
}

}  // namespace ckfs
