// One request, from top to bottom: note where its reader is, start the chunks after it, then for
// each chunk that the request touches: is it ready or being computed? Then its bytes are lent out.
// Otherwise this thread carries the plan out itself, straight into the reply.
//
// Memory, and why nothing can wait in a circle. Two pools share the budget. A request takes its
// reply and scratch from `transient` in one piece; while it holds that it may wait for `cached`. A
// computation of a tile takes all it needs from `cached` in one piece, and while it holds that it
// waits for nothing but the source. Chunks ahead of readers are never waited for: no memory, no
// chunk.
#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <spdlog/spdlog.h>
#include <thread>

#include "base/log_limit.h"
#include "base/units.h"
#include "engine/decode_ahead.h"
#include "engine/gather.h"
#include "engine/read_plan.h"
#include "engine/run_decoder.h"
#include "memory/buffer_pool.h"
#include "memory/tile_cache.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kLeastMemory = 64_MiB;

/// Reads of more than this are carried out piece by piece.
constexpr std::uint64_t kWindow = kChunkBytes;

ElementRun run_of(const DecodePart& part) {
  return {part.storage, part.first, part.count, part.program};
}

/// Whether the part's bytes are those of the run from its first to its last.
bool is_whole(const DecodePart& part, const RunNeeds& needs, std::uint64_t size) {
  return part.skip == 0 && needs.out == size;
}

/// Scratch that `plan` wants: staging for each decoded run, and for one that the request cuts
/// within an element, room for its elements.
std::size_t scratch_for(const Catalog& catalog, const ReadPlan& plan) {
  std::size_t scratch = 0;
  for (const PlanPart& part : plan) {
    if (const auto* decode = std::get_if<DecodePart>(&part.what)) {
      const RunNeeds needs = run_needs(catalog, run_of(*decode));
      scratch += needs.staging;
      if (!is_whole(*decode, needs, part.out.size())) scratch += (needs.out + 63) / 64 * 64;
    }
  }
  return scratch;
}

}  // namespace

class Engine::Impl {
 public:
  Impl(std::shared_ptr<const Catalog> catalog, ByteSource& source, const EngineOptions& options)
      : catalog_(std::move(catalog)),
        source_(source),
        kernels_(options.kernels),
        budget_(std::max(options.memory, kLeastMemory)),
        transient_(BufferPool::create(budget_ / 4)),
        cached_(BufferPool::create(budget_ - budget_ / 4)),
        tile_bytes_(options.tile_bytes != 0
                        ? options.tile_bytes
                        : std::min<std::uint64_t>(cached_->limit() / 3, 64_MiB)),
        tile_staging_(std::max<std::size_t>(least_staging(*catalog_),
                                            std::clamp<std::uint64_t>(tile_bytes_, 64_KiB, 8_MiB))),
        cache_(*cached_),
        ahead_(options.ahead_threads != 0 ? options.ahead_threads
                                          : std::max(2U, std::thread::hardware_concurrency()) - 1,
               [this](ReadStream& stream, std::uint64_t chunk) { compute_ahead(stream, chunk); }) {}

  Result<Bytes> read(ReadStream& stream, ByteRange range) {
    count(range);
    if (range.empty()) return Bytes();
    const FileLayout& file = stream.file();
    const ReadStream::Advice advice = follow(stream, range);
    const std::uint64_t chunk = range.begin / kChunkBytes;
    if (range.end <= (chunk + 1) * kChunkBytes) {
      CKFS_TRY(const auto tile, ready_chunk(file, chunk, advice));
      if (tile) {
        answered(stream, range, advice);
        const std::uint64_t at = range.begin - chunk * kChunkBytes;
        return Bytes(tile->span().subspan(at, range.size()), tile);
      }
    }
    CKFS_TRY(Buffer reply, acquire_reply(file, range));
    auto owner = std::make_shared<const Buffer>(std::move(reply));
    if (auto filled = fill(file, range, {owner->data(), range.size()},
                           owner->span().subspan(aligned_reply(range)), advice);
        !filled) {
      log_failure(file, range, filled.error());
      return Failure(std::move(filled).error());
    }
    answered(stream, range, advice);
    return Bytes({owner->data(), range.size()}, owner);
  }

  Result<void> read(ReadStream& stream, ByteRange range, std::span<std::byte> out) {
    count(range);
    const FileLayout& file = stream.file();
    return for_each_window(range, [&](ByteRange window) -> Result<void> {
      const ReadStream::Advice advice = follow(stream, window);
      const std::span<std::byte> here = out.subspan(window.begin - range.begin, window.size());
      if (auto filled = fill_window(file, window, here, advice); !filled) {
        log_failure(file, window, filled.error());
        return filled;
      }
      answered(stream, window, advice);
      return {};
    });
  }

  void close(ReadStream& stream) { forget(stream.file(), stream.abandon()); }

  EngineStatistics statistics() const {
    EngineStatistics statistics;
    statistics.requests = requests_.load(std::memory_order_relaxed);
    statistics.bytes_to_readers = bytes_.load(std::memory_order_relaxed);
    statistics.tiles = cache_.computed();
    statistics.hits = cache_.hits();
    statistics.memory = transient_->held() + cached_->held();
    // Two peaks that may have come at different times: an upper bound of the true one.
    statistics.memory_peak = transient_->peak() + cached_->peak();
    statistics.memory_budget = budget_;
    return statistics;
  }

 private:
  void count(ByteRange range) {
    requests_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(range.size(), std::memory_order_relaxed);
  }

  /// Reports to the operator what a reader only sees as an errno: file, offset (they are in the
  /// message) and tensor. A cause is a source file and what is wrong with it, wherever it is read.
  /// A stale file has been reported where it was found.
  void log_failure(const FileLayout& file, ByteRange range, const Error& error) {
    if (error.code() == ErrorCode::Stale) return;
    const std::string_view thing =
        std::string_view(error.message()).substr(0, error.message().find(": "));
    const auto suppressed = failures_.admit(
        fmt::format("{} {} {}", static_cast<int>(error.code()), error.system_error(), thing));
    if (!suppressed) return;
    std::string tensors;
    for (std::size_t k = file.find(range.begin); k < file.segments.size(); ++k) {
      const Segment& segment = file.segments[k];
      if (segment.begin >= range.end) break;
      if (segment.kind != Segment::Kind::Tensor) continue;
      tensors += fmt::format("{}\"{}\"", tensors.empty() ? "tensor " : ", ",
                             file.definition->tensors[segment.id].name);
    }
    spdlog::error("{} (reading {} {}, {}){}", error.message(), file.path, range,
                  tensors.empty() ? "no tensor" : tensors, suppressed_note(*suppressed));
  }

  ReadStream::Advice follow(ReadStream& stream, ByteRange range) {
    ReadStream::Advice advice = stream.advise(range);
    for (const std::uint64_t chunk : advice.ahead) ahead_.add(stream.weak_from_this(), chunk);
    return advice;
  }

  void answered(ReadStream& stream, ByteRange range, const ReadStream::Advice& advice) {
    forget(stream.file(), advice.passed);
    forget(stream.file(), stream.answered(range));
  }

  void forget(const FileLayout& file, std::span<const std::uint64_t> chunks) {
    for (const std::uint64_t chunk : chunks)
      cache_.drop({file.inode, TileKey::Kind::Chunk, 0, chunk});
  }

  /// Bytes from a tile are lent only while its files are the ones that were opened.
  Result<void> verify(const Tile& tile) {
    auto verified = source_.verify(tile.files);
    if (!verified) cache_.clear();
    return verified;
  }

  /// The chunk, if it is ready or being computed; also if it is worth computing as a whole: a
  /// sequential reader wants only a part of it now, and the rest soon. (One that became sequential
  /// in its middle has read the first part already.) nullptr: carry the plan out.
  Result<std::shared_ptr<const Tile>> ready_chunk(const FileLayout& file, std::uint64_t chunk,
                                                  const ReadStream::Advice& advice) {
    const TileKey key{file.inode, TileKey::Kind::Chunk, 0, chunk};
    auto found = cache_.find(key);
    if (!found || !*found) {
      if (std::ranges::find(advice.whole, chunk) == advice.whole.end()) {
        return std::shared_ptr<const Tile>();
      }
      found = cache_.get(key, [&] { return compute_chunk(file, chunk); });
      // An error here may be that of the memory; the plan, carried out, says what is true.
      if (!found) return std::shared_ptr<const Tile>();
    }
    CKFS_TRY_VOID(verify(**found));
    return found;
  }

  static ByteRange chunk_range(const FileLayout& file, std::uint64_t chunk) {
    return {chunk * kChunkBytes, std::min((chunk + 1) * kChunkBytes, file.size)};
  }

  /// Copies a window from its chunk, if that is ready or worth computing; false: it is not.
  Result<bool> copy_chunk(const FileLayout& file, ByteRange window, std::span<std::byte> out,
                          const ReadStream::Advice& advice) {
    const std::uint64_t chunk = window.begin / kChunkBytes;
    CKFS_TRY(const auto tile, ready_chunk(file, chunk, advice));
    if (!tile) return false;
    std::memcpy(out.data(), tile->span().data() + (window.begin - chunk * kChunkBytes), out.size());
    return true;
  }

  /// A window into the caller's buffer: scratch is all the memory it needs.
  Result<void> fill_window(const FileLayout& file, ByteRange window, std::span<std::byte> out,
                           const ReadStream::Advice& advice) {
    CKFS_TRY(const bool copied, copy_chunk(file, window, out, advice));
    if (copied) return {};
    const ReadPlan plan = plan_read(file, window);
    CKFS_TRY(Buffer scratch, transient_->acquire(scratch_for(*catalog_, plan)));
    return carry_out(file, plan, out, scratch.span(), advice.sequential);
  }

  static std::size_t aligned_reply(ByteRange range) { return (range.size() + 63) / 64 * 64; }

  /// Calls `use` for the parts of `range` that lie in one chunk each, until one fails.
  template <typename Use>
  static Result<void> for_each_window(ByteRange range, Use use) {
    for (ByteRange window = range; window.begin < range.end; window.begin = window.end) {
      window.end = std::min(range.end, (window.begin / kWindow + 1) * kWindow);
      CKFS_TRY_VOID(use(window));
    }
    return {};
  }

  /// Reply and scratch for `range`, in one piece.
  Result<Buffer> acquire_reply(const FileLayout& file, ByteRange range) {
    std::size_t scratch = 0;
    CKFS_TRY_VOID(for_each_window(range, [&](ByteRange window) -> Result<void> {
      scratch = std::max(scratch, scratch_for(*catalog_, plan_read(file, window)));
      return {};
    }));
    return transient_->acquire(aligned_reply(range) + scratch);
  }

  Result<void> fill(const FileLayout& file, ByteRange range, std::span<std::byte> out,
                    std::span<std::byte> scratch, const ReadStream::Advice& advice) {
    return for_each_window(range, [&](ByteRange window) -> Result<void> {
      const std::span<std::byte> here = out.subspan(window.begin - range.begin, window.size());
      CKFS_TRY(const bool copied, copy_chunk(file, window, here, advice));
      if (copied) return {};
      return carry_out(file, plan_read(file, window), here, scratch, advice.sequential);
    });
  }

  /// Does what the plan says. `scratch` holds scratch_for() bytes. Tiles and literals come from the
  /// cache, one at a time; all that is read goes in one batch.
  Result<void> carry_out(const FileLayout& file, const ReadPlan& plan, std::span<std::byte> out,
                         std::span<std::byte> scratch, bool sequential) {
    for (const PlanPart& part : plan) {
      const std::span<std::byte> here = out.subspan(part.out.begin, part.out.size());
      if (const auto* literal = std::get_if<LiteralPart>(&part.what)) {
        CKFS_TRY_VOID(copy_literal(file, *literal, here));
      } else if (const auto* gathered = std::get_if<GatherPart>(&part.what)) {
        CKFS_TRY_VOID(copy_gathered(file, *gathered, here, sequential));
      }
    }
    auto carried = carry_out_reads(plan, out, scratch);
    if (!carried && carried.error().code() == ErrorCode::Stale) cache_.clear();
    return carried;
  }

  Result<void> carry_out_reads(const ReadPlan& plan, std::span<std::byte> out,
                               std::span<std::byte> scratch) {
    std::vector<ReadRequest> batch;
    std::size_t used = 0;
    for (const PlanPart& part : plan) {
      const std::span<std::byte> here = out.subspan(part.out.begin, part.out.size());
      if (const auto* copy = std::get_if<CopyPart>(&part.what)) {
        batch.push_back({copy->file, copy->offset, here});
      } else if (const auto* decode = std::get_if<DecodePart>(&part.what)) {
        const RunNeeds needs = run_needs(*catalog_, run_of(*decode));
        add_reads(*catalog_, run_of(*decode), scratch.subspan(used, needs.staging), batch);
        used += needs.staging;
      } else if (std::holds_alternative<ZeroPart>(part.what)) {
        std::memset(here.data(), 0, here.size());
      }
    }
    if (!batch.empty()) CKFS_TRY_VOID(source_.read(batch));
    std::size_t decoded = 0;
    for (const PlanPart& part : plan) {
      const auto* decode = std::get_if<DecodePart>(&part.what);
      if (decode == nullptr) continue;
      const std::span<std::byte> here = out.subspan(part.out.begin, part.out.size());
      const ElementRun run = run_of(*decode);
      const RunNeeds needs = run_needs(*catalog_, run);
      const std::span<std::byte> staging = scratch.subspan(decoded, needs.staging);
      if (is_whole(*decode, needs, here.size())) {
        decode_run(*catalog_, run, staging, here, kernels_);
      } else {
        const std::span<std::byte> elements = scratch.subspan(used, needs.out);
        decode_run(*catalog_, run, staging, elements, kernels_);
        std::memcpy(here.data(), elements.data() + decode->skip, here.size());
        used += (needs.out + 63) / 64 * 64;
      }
      decoded += needs.staging;
    }
    return {};
  }

  Result<void> copy_literal(const FileLayout& file, const LiteralPart& part,
                            std::span<std::byte> out) {
    const Literal& literal = file.literals[part.literal];
    CKFS_TRY(const auto tile, cache_.get({file.inode, TileKey::Kind::Literal, part.literal, 0},
                                         [&]() -> Result<Tile> {
                                           CKFS_TRY(Buffer text, cached_->acquire(literal.size));
                                           render(literal, text.span());
                                           return Tile{std::move(text), literal.size, {}};
                                         }));
    std::memcpy(out.data(), tile->span().data() + part.offset, out.size());
    return {};
  }

  static void render(const Literal& literal, std::span<std::byte> out) {
    const std::string text = literal.render();
    CKFS_CHECK(text.size() == literal.size && out.size() == literal.size);
    std::memcpy(out.data(), text.data(), text.size());
  }

  /// Bytes of a tensor that needs tiles. A random read computes just its own elements; a tile that
  /// is ready serves anybody.
  Result<void> copy_gathered(const FileLayout& file, const GatherPart& part,
                             std::span<std::byte> out, bool sequential) {
    const TensorExpr& expr = file.definition->tensors[part.tensor].expr;
    const TileGeometry geometry = tile_geometry(expr, tile_bytes_);
    const std::uint64_t width = static_cast<std::uint64_t>(bits(expr.dtype())) / 8;
    const std::uint64_t tile_size = static_cast<std::uint64_t>(geometry.elements) * width;
    for (std::uint64_t done = 0; done < out.size();) {
      const std::uint64_t at = part.begin + done;
      const std::uint64_t index = at / tile_size;
      const std::uint64_t inside = at - index * tile_size;
      const std::span<std::byte> here =
          out.subspan(done, std::min(out.size() - done, tile_size - inside));
      const TileKey key{file.inode, TileKey::Kind::Tile, part.tensor, index};
      std::shared_ptr<const Tile> tile;
      ByteRange computed{inside, inside + here.size()};  // of the tile, as `tile` holds it
      if (!sequential) {
        CKFS_TRY(tile, cache_.find(key));
        if (!tile) {
          CKFS_TRY(Tile panel, compute_tile(expr, index * tile_size, computed, width));
          tile = std::make_shared<const Tile>(std::move(panel));
        } else {
          computed = {0, tile->size};
        }
      } else {
        computed = {0, std::min(tile_size, expr.nbytes() - index * tile_size)};
        CKFS_TRY(tile, cache_.get(key, [&] {
          return compute_tile(expr, index * tile_size, computed, width);
        }));
      }
      CKFS_TRY_VOID(verify(*tile));
      const std::uint64_t first = computed.begin / width * width;
      std::memcpy(here.data(), tile->span().data() + (inside - first), here.size());
      done += here.size();
    }
    return {};
  }

  /// The elements that cover bytes `part` of the tile that begins at byte `begin` of the tensor.
  Result<Tile> compute_tile(const TensorExpr& expr, std::uint64_t begin, ByteRange part,
                            std::uint64_t width) {
    const auto first = static_cast<std::int64_t>((begin + part.begin) / width);
    const auto last = static_cast<std::int64_t>((begin + part.end + width - 1) / width);
    const auto size = static_cast<std::size_t>(last - first) * width;
    const std::size_t place = (size + 63) / 64 * 64;
    CKFS_TRY(Buffer buffer, cached_->acquire(place + tile_staging_));
    auto gathered = gather(*catalog_, source_, expr, first, last, buffer.span().first(size),
                           buffer.span().subspan(place), kernels_);
    if (!gathered) {
      if (gathered.error().code() == ErrorCode::Stale) cache_.clear();
      return Failure(std::move(gathered).error());
    }
    return Tile{std::move(buffer), size, std::move(*gathered)};
  }

  std::vector<FileId> files_of(StorageId id) const {
    std::vector<FileId> files;
    const Storage& storage = catalog_->storage(id);
    for (const Extent& extent : storage.extents) files.push_back(extent.file);
    if (storage.encoding != nullptr) {
      if (const auto* scale = std::get_if<BlockScale>(storage.encoding)) {
        for (const FileId file : files_of(scale->scale)) files.push_back(file);
      }
    }
    return files;
  }

  std::vector<FileId> files_of(const ReadPlan& plan) const {
    std::vector<FileId> files;
    for (const PlanPart& part : plan) {
      if (const auto* copy = std::get_if<CopyPart>(&part.what)) {
        files.push_back(copy->file);
      } else if (const auto* decode = std::get_if<DecodePart>(&part.what)) {
        for (const FileId file : files_of(decode->storage)) files.push_back(file);
      }
    }
    return sorted_once(std::move(files));
  }

  /// A chunk of a file, without waiting for memory. Literals are rendered into it; a chunk with
  /// gathered bytes is no chunk, for the tile is what gets computed ahead (compute_ahead).
  Result<Tile> compute_chunk(const FileLayout& file, std::uint64_t chunk) {
    const ByteRange range = chunk_range(file, chunk);
    const ReadPlan plan = plan_read(file, range);
    for (const PlanPart& part : plan) {
      if (std::holds_alternative<GatherPart>(part.what)) return no_chunk();
      const auto* literal = std::get_if<LiteralPart>(&part.what);
      if (literal != nullptr && file.literals[literal->literal].size > kChunkBytes)
        return no_chunk();
    }
    const std::size_t place = aligned_reply(range);
    auto buffer = cached_->try_acquire(place + scratch_for(*catalog_, plan));
    if (!buffer) return no_chunk();
    const std::span<std::byte> out = buffer->span().first(range.size());
    std::optional<std::uint32_t> rendered;  // a literal may come in many pieces, one after another
    std::string text;
    for (const PlanPart& part : plan) {
      if (const auto* literal = std::get_if<LiteralPart>(&part.what)) {
        if (rendered != literal->literal) text = file.literals[literal->literal].render();
        rendered = literal->literal;
        std::memcpy(out.data() + part.out.begin, text.data() + literal->offset, part.out.size());
      }
    }
    CKFS_TRY_VOID(carry_out_reads(plan, out, buffer->span().subspan(place)));
    return Tile{std::move(*buffer), range.size(), files_of(plan)};
  }

  /// Not an error that anybody sees: it tells the asker to carry the plan out.
  static Failure no_chunk() {
    return fail(ErrorCode::OutOfMemory, "chunk: not computed ahead of its reader");
  }

  /// What a worker does for one chunk. Errors are the reader's to meet: they are not kept.
  void compute_ahead(ReadStream& stream, std::uint64_t chunk) {
    const FileLayout& file = stream.file();
    const ByteRange range = chunk_range(file, chunk);
    const ReadPlan plan = plan_read(file, range);
    bool gathers = false;
    for (const PlanPart& part : plan) {
      const auto* gathered = std::get_if<GatherPart>(&part.what);
      if (gathered == nullptr) continue;
      gathers = true;
      const TensorExpr& expr = file.definition->tensors[gathered->tensor].expr;
      const TileGeometry geometry = tile_geometry(expr, tile_bytes_);
      const std::uint64_t width = static_cast<std::uint64_t>(bits(expr.dtype())) / 8;
      const std::uint64_t tile_size = static_cast<std::uint64_t>(geometry.elements) * width;
      const std::uint64_t index = gathered->begin / tile_size;
      (void)cache_.get({file.inode, TileKey::Kind::Tile, gathered->tensor, index}, [&] {
        return compute_tile(expr, index * tile_size,
                            {0, std::min(tile_size, expr.nbytes() - index * tile_size)}, width);
      });
    }
    if (gathers) return;
    (void)cache_.get({file.inode, TileKey::Kind::Chunk, 0, chunk}, [&]() -> Result<Tile> {
      // Asked once more now that others see this computation: a reader that came before it has
      // taken the chunk for its own, one that comes after it waits.
      if (!stream.wants(chunk)) return no_chunk();
      return compute_chunk(file, chunk);
    });
  }

  const std::shared_ptr<const Catalog> catalog_;
  ByteSource& source_;
  const KernelSet kernels_;
  const std::uint64_t budget_;
  const std::shared_ptr<BufferPool> transient_;
  const std::shared_ptr<BufferPool> cached_;
  const std::uint64_t tile_bytes_;
  const std::size_t tile_staging_;
  TileCache cache_;
  LogLimit failures_;
  std::atomic<std::uint64_t> requests_{0};
  std::atomic<std::uint64_t> bytes_{0};
  DecodeAhead ahead_;  // last: its threads use all of the above
};

Engine::Engine(std::shared_ptr<const Catalog> catalog, ByteSource& source,
               const EngineOptions& options)
    : impl_(std::make_unique<Impl>(std::move(catalog), source, options)) {}

Engine::~Engine() = default;

std::shared_ptr<ReadStream> Engine::open_stream(std::shared_ptr<const FileLayout> file) {
  // When the last owner lets go, what was computed for this reader goes too.
  return {new ReadStream(std::move(file)), [engine = impl_.get()](ReadStream* stream) {
            engine->close(*stream);
            delete stream;
          }};
}

Result<Bytes> Engine::read(ReadStream& stream, ByteRange range) {
  return impl_->read(stream, range);
}

Result<void> Engine::read(ReadStream& stream, ByteRange range, std::span<std::byte> out) {
  CKFS_CHECK(out.size() == range.size());
  return impl_->read(stream, range, out);
}

EngineStatistics Engine::statistics() const {
  return impl_->statistics();
}

}  // namespace ckfs
