// A plan's parts come from three places: the cache (rendered text, tiles), the source as it is, and
// the source through a decoder. The first are copied before any scratch is held, because computing
// them may need memory of the same tier. Then all reads go in one batch.
//
// A tile is computed by all workers that are idle, batch by batch (gather.h), each with a staging
// buffer of its own; the thread that needs the tile does the rest.
#include "engine/evaluator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/rounding.h"
#include "base/stop.h"
#include "base/units.h"
#include "engine/quantized_tiles.h"
#include "engine/source_ranges.h"
#include "expr/steps.h"
#include "tensor/arithmetic.h"
#include "tensor/quantize.h"

namespace ckfs {
namespace {

/// Elements of 16 bytes that a range cuts at both ends.
constexpr std::size_t kEdges = 32;

/// The part's bytes.
void write_constant(const ConstantPart& part, std::span<std::byte> out) {
  if (part.bits == 0) {
    std::memset(out.data(), 0, out.size());
    return;
  }
  const ConstantElement element(part.bits);
  // Every width divides 16.
  std::size_t done = std::min<std::size_t>(out.size(), element.bytes.size());
  for (std::size_t i = 0; i < done; ++i) out[i] = element.bytes[(part.skip + i) % part.width];
  while (done < out.size()) {
    const std::size_t more = std::min(done, out.size() - done);
    std::memcpy(out.data() + done, out.data(), more);
    done += more;
  }
}

void render(const FileLayout& file, std::uint32_t literal, std::span<std::byte> out) {
  const std::string text = file.render(literal);
  CKFS_CHECK(text.size() == file.literals[literal] && out.size() == text.size());
  std::memcpy(out.data(), text.data(), text.size());
}

/// Literals of up to this many bytes are rendered into the piece that holds a part of them.
constexpr std::uint64_t kSmallLiteral = kPieceBytes;

}  // namespace

/// The source as one reader wants it. Measures how long it takes. When it turns out to have
/// changed, the cache of computed bytes is cleared.
class Evaluator::Measured final : public ByteSource {
 public:
  Measured(Evaluator& evaluator, Want want) : evaluator_(evaluator), want_(want) {}

  Result<void> read(std::span<const ReadRequest> batch) override {
    const SourcePace::Watch watch;
    const bool is_once = !batch.empty() && once(batch.front().file);
    auto done = is_once ? evaluator_.source_.read_once(batch) : evaluator_.source_.read(batch);
    if (!done) {
      if (done.error().code() == ErrorCode::Stale) evaluator_.cache_.clear();
      return done;
    }
    std::uint64_t bytes = 0;
    for (const ReadRequest& request : batch) bytes += request.out.size();
    if (!batch.empty()) evaluator_.pace_.took(bytes, batch.front().file, watch.waited());
    return {};
  }
  std::optional<MappedBytes> map(const FileRange& range, std::uint64_t used) override {
    ByteSource& source = evaluator_.source_;
    return once(range.file) ? source.map_once(range, used) : source.map(range, used);
  }
  Result<void> check_mapped(std::span<const MappedBytes> mapped) override {
    auto checked = evaluator_.source_.check_mapped(mapped);
    if (!checked && checked.error().code() == ErrorCode::Stale) evaluator_.cache_.clear();
    return checked;
  }
  std::optional<MappedBytes> keep(const FileRange& range) override;
  Result<void> verify(std::span<const FileId> files) override { return evaluator_.verify(files); }
  std::uint64_t size(FileId file) const override { return evaluator_.source_.size(file); }
  const std::string& name(FileId file) const override { return evaluator_.source_.name(file); }

 private:
  /// The first file of a batch decides for all.
  bool once(FileId file) const {
    return want_.once || (want_.delivered && evaluator_.source_.traits(file).knows_page_cache);
  }

  Evaluator& evaluator_;
  const Want want_;
};

/// Kept as tiles of the cache. A random reader uses tiles that are there and keeps none: other
/// readers may not follow it. Never waits for memory, because the caller may hold some of the same
/// tier. After an error the caller reads the needed bytes itself.
std::optional<MappedBytes> Evaluator::Measured::keep(const FileRange& range) {
  constexpr std::uint64_t kShare = 4;  // of a tile
  if (range.size > evaluator_.tile_bytes_.good / kShare) return std::nullopt;
  const TileKey key{range.file, TileKey::Kind::Kept, 0, range.offset};
  const auto read_all = [&]() -> Result<Tile> {
    auto buffer = evaluator_.pool_.try_acquire(Tier::Tile, range.size);
    if (!buffer) return fail(ErrorCode::OutOfMemory, "memory budget: no room to keep bytes");
    const ReadRequest all{range.file, range.offset, buffer->span().first(range.size)};
    CKFS_TRY_VOID(read(std::span(&all, 1)));
    return Tile{*std::move(buffer), range.size, {range.file}};
  };
  std::shared_ptr<const Tile> tile = evaluator_.cache_.find(key);
  if (!tile && want_.sequential) {
    if (auto read = evaluator_.cache_.get(key, read_all)) tile = *std::move(read);
  }
  if (!tile || tile->size != range.size) return std::nullopt;
  return MappedBytes{range.file, tile->span().data(), tile};
}

Evaluator::Evaluator(const Catalog& catalog, ByteSource& source, BufferPool& pool, TileCache& cache,
                     Workers& workers, TileBytes tile_bytes, KernelSet kernels)
    : source_(source),
      pool_(pool),
      cache_(cache),
      workers_(workers),
      tile_bytes_(tile_bytes),
      staging_bytes_(std::max<std::size_t>(
          least_staging(catalog),
          std::clamp<std::uint64_t>(tile_bytes.good / 8, 64_KiB, kMostStaging))),
      kernels_(kernels) {}

Evaluator::TilePosition Evaluator::place_of(const FileLayout& file, std::uint32_t tensor,
                                            std::uint64_t byte) const {
  const TensorExpr& expr = file.expr(tensor);
  const std::optional<QuantizedPart> made = file.quantized(tensor);
  const auto elements =
      made ? quantized_tile(*made, tile_bytes_)
           : static_cast<std::uint64_t>(tile_geometry(expr, tile_bytes_).elements) * width_of(expr);
  const std::uint64_t index = byte / elements;
  return {tensor, index, {index * elements, std::min((index + 1) * elements, expr.nbytes())}};
}

TileKey Evaluator::key_of(const FileLayout& file, const TilePosition& place) {
  return {file.serial, TileKey::Kind::Tile, place.tensor, place.index};
}

ByteRange Evaluator::unit_at(const FileLayout& file, std::uint64_t offset) const {
  const std::size_t at = file.find(offset);
  const Segment& segment = file.segments[at];
  const ByteRange range = file.range(at);
  if (segment.kind != Segment::Kind::Tensor || !needs_tiles(file, segment.id) ||
      (range.size() < kLargeTensor && !file.quantized(segment.id))) {
    return file.piece_at(offset);
  }
  const TilePosition place = place_of(file, segment.id, offset - range.begin);
  return {range.begin + place.tile.begin, range.begin + place.tile.end};
}

Result<void> Evaluator::verify(std::span<const FileId> files) {
  auto verified = source_.verify(files);
  if (!verified && verified.error().code() == ErrorCode::Stale) cache_.clear();
  return verified;
}

Result<std::vector<Buffer>> Evaluator::memory(std::span<const std::size_t> sizes,
                                              Patience patience) {
  if (patience == Patience::Wait) return pool_.acquire(Tier::Tile, sizes);
  auto buffers = pool_.try_acquire(Tier::Tile, sizes);
  if (!buffers) return fail(ErrorCode::OutOfMemory, "memory budget: no room to compute ahead");
  return *std::move(buffers);
}

Result<void> Evaluator::fill(const FileLayout& file, ByteRange range, std::span<std::byte> out,
                             Want want) {
  const ReadPlan plan = plan_read(file, range);
  for (const PlanPart& part : plan.parts) {
    const std::span<std::byte> here = out.subspan(part.out.begin, part.out.size());
    if (const auto* literal = std::get_if<LiteralPart>(&part.what)) {
      CKFS_TRY_VOID(copy_literal(file, *literal, here));
    } else if (const auto* gathered = std::get_if<GatherPart>(&part.what)) {
      CKFS_TRY_VOID(copy_gathered(file, *gathered, here, want));
    }
  }
  CKFS_TRY(const Buffer scratch, pool_.acquire(Tier::Tile, plan.scratch()));
  const TierScope holding(Tier::Tile);
  const Task task{&plan, out};
  return carry_out(std::span(&task, 1), plan.reads, scratch.span(), want,
                   [](std::size_t /*number*/, const std::vector<FileId>& /*files*/) {});
}

/// Reads the parts of the plans that come from the source, in one batch, and decodes them. Calls
/// `done(number, files)` for each plan in turn, with the files that it was read from. `reads`: the
/// reads of the decoded parts of all plans.
Result<void> Evaluator::carry_out(std::span<const Task> tasks, const RunReads& reads,
                                  std::span<std::byte> scratch, Want want, const Done& done) {
  Measured source(*this, want);
  SourceBytes bytes(source);
  for (const Task& task : tasks) {
    for (const PlanPart& part : task.plan->parts) {
      const std::span<std::byte> here = task.out.subspan(part.out.begin, part.out.size());
      if (const auto* copy = std::get_if<CopyPart>(&part.what)) {
        bytes.add(copy->file, copy->offset, here, task.padded);
      } else if (const auto* constant = std::get_if<ConstantPart>(&part.what)) {
        write_constant(*constant, here);
      }
    }
  }
  RunDecoder decoder(reads, bytes, scratch, kernels_);
  CKFS_TRY_VOID(bytes.fetch());
  for (std::size_t k = 0; k < tasks.size(); ++k) {
    for (const PlanPart& part : tasks[k].plan->parts) {
      const std::span<std::byte> here = tasks[k].out.subspan(part.out.begin, part.out.size());
      const auto* copy = std::get_if<CopyPart>(&part.what);
      if (copy != nullptr && copy->quiet) {
        quiet_nans(copy->dtype, here.data(), here.size() / bytes_of(copy->dtype, 1));
      }
      const auto* decode = std::get_if<DecodePart>(&part.what);
      if (decode == nullptr) continue;
      auto decoded = decoder.decode(decode->run, decode->skip, here);
      if (decoded) continue;
      CKFS_TRY_VOID(bytes.check());
      return decode_failure(reads.catalog(), source_, decode->run.storage, decoded.error());
    }
    CKFS_TRY_VOID(bytes.check());
    done(k, tasks.size() == 1 ? bytes.files() : files_of(ranges_of(*tasks[k].plan)));
  }
  return {};
}

Result<void> Evaluator::copy_literal(const FileLayout& file, const LiteralPart& part,
                                     std::span<std::byte> out) {
  const std::uint64_t size = file.literals[part.literal];
  const TileKey key{file.serial, TileKey::Kind::Literal, part.literal, 0};
  CKFS_TRY(const auto tile, cache_.get(key, [&]() -> Result<Tile> {
    CKFS_TRY(Buffer text, pool_.acquire(Tier::Tile, size));
    render(file, part.literal, text.span());
    return Tile{std::move(text), size, {}};
  }));
  std::memcpy(out.data(), tile->span().data() + part.offset, out.size());
  return {};
}

/// Bytes of a tensor that needs tiles. A random read computes just its own elements; a ready tile
/// serves every reader.
Result<void> Evaluator::copy_gathered(const FileLayout& file, const GatherPart& part,
                                      std::span<std::byte> out, Want want) {
  for (std::uint64_t done = 0; done < out.size();) {
    const std::uint64_t at = part.begin + done;
    const TilePosition place = place_of(file, part.tensor, at);
    const std::span<std::byte> here =
        out.subspan(done, std::min(out.size() - done, place.tile.end - at));
    std::uint64_t first = place.tile.begin;  // byte of the tensor that `tile` begins with
    std::shared_ptr<const Tile> tile;
    if (want.sequential) {
      CKFS_TRY(tile, cache_.get(key_of(file, place), [&] {
        return gathered(file, part.tensor, place.tile, want, Patience::Wait);
      }));
    } else {
      tile = cache_.find(key_of(file, place));
      if (!tile) {
        CKFS_TRY(Tile panel,
                 gathered(file, part.tensor, {at, at + here.size()}, want, Patience::Wait));
        tile = std::make_shared<const Tile>(std::move(panel));
        first = begin_of(file, part.tensor, {at, at + here.size()});
      }
    }
    CKFS_TRY_VOID(verify(tile->files));
    std::memcpy(here.data(), tile->span().data() + (at - first), here.size());
    done += here.size();
  }
  return {};
}

/// For the elements that cover bytes `bytes` of a tensor.
GatherPlan Evaluator::gather_plan(const FileLayout& file, std::uint32_t tensor,
                                  ByteRange bytes) const {
  const TensorExpr& expr = file.expr(tensor);
  const std::uint64_t width = width_of(expr);
  return GatherPlan::make(
      *file.definition->catalog, expr, static_cast<std::int64_t>(bytes.begin / width),
      static_cast<std::int64_t>((bytes.end + width - 1) / width), staging_bytes_);
}

Result<Tile> Evaluator::gathered(const FileLayout& file, std::uint32_t tensor, ByteRange bytes,
                                 Want want, Patience patience) {
  if (file.quantized(tensor)) return quantized(file, tensor, bytes, want, patience);
  const GatherPlan plan = gather_plan(file, tensor, bytes);
  const std::uint64_t width = width_of(file.expr(tensor));
  const std::size_t size = (bytes.end + width - 1) / width * width - bytes.begin / width * width;
  CKFS_TRY(std::vector<Buffer> buffers,
           memory(std::array<std::size_t, 2>{size, plan.staging()}, patience));
  const TierScope holding(Tier::Tile);
  CKFS_TRY(std::vector<FileId> files,
           gather_into(plan, buffers[1].span(), buffers[0].span(), want));
  return Tile{std::move(buffers[0]), size, std::move(files)};
}

/// Where in the tensor the bytes begin that gathered() gives for `bytes`.
std::uint64_t Evaluator::begin_of(const FileLayout& file, std::uint32_t tensor,
                                  ByteRange bytes) const {
  if (const auto made = file.quantized(tensor)) {
    const Quantizer& quantizer = *made->weight->quantizer;
    return quantizer.bytes_of(made->output, quantizer.elements_of(made->output, bytes)).begin;
  }
  const std::uint64_t width = width_of(file.expr(tensor));
  return bytes.begin / width * width;
}

std::optional<Buffer> Evaluator::memory_of_helper(std::size_t size) {
  try {
    return pool_.try_acquire(Tier::Tile, size);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

/// All batches of the plan, by this thread and the workers that come to help.
Result<std::vector<FileId>> Evaluator::gather_into(const GatherPlan& plan,
                                                   std::span<std::byte> staging,
                                                   std::span<std::byte> out, Want want) {
  Mutex mutex;
  std::vector<FileId> files;  // guarded by mutex
  CKFS_TRY_VOID(workers_.share(plan.batches(), [&](Workers::Claims& claims, bool helper) {
    std::optional<Buffer> own;
    if (helper && !(own = memory_of_helper(plan.staging()))) return;
    const TierScope holding(Tier::Tile);
    Measured source(*this, want);
    while (const auto batch = claims.next()) {
      if (stop_asked()) return claims.fail(stopped("a tile").value());
      auto read = plan.run(*batch, source, helper ? own->span() : staging, out, kernels_);
      if (!read) return claims.fail(read.error());
      const MutexLock lock(mutex);
      files.insert(files.end(), read->begin(), read->end());
    }
  }));
  return sorted_once(std::move(files));
}

Result<Tile> Evaluator::piece(const FileLayout& file, ByteRange range, Want want) {
  std::optional<Tile> piece;
  CKFS_TRY_VOID(pieces(file, std::span(&range, 1), want,
                       [&](std::size_t /*number*/, Tile tile) { piece = std::move(tile); }));
  return *std::move(piece);
}

/// Bytes of scratch to carry out the plan of a piece.
Result<std::size_t> Evaluator::scratch_of(const FileLayout& file, const ReadPlan& plan) const {
  std::size_t scratch = 0;
  for (const PlanPart& part : plan.parts) {
    if (const auto* gathered = std::get_if<GatherPart>(&part.what)) {
      if (file.quantized(gathered->tensor)) {
        return fail(ErrorCode::OutOfMemory, "{}: a tensor that is not computed in pieces",
                    file.path);
      }
      // Of a piece at most, so the plan is cheap enough to be made twice.
      const GatherPlan gather =
          gather_plan(file, gathered->tensor, {gathered->begin, gathered->begin + part.out.size()});
      scratch = std::max(scratch, aligned(part.out.size() + kEdges) + gather.staging());
    } else if (const auto* literal = std::get_if<LiteralPart>(&part.what)) {
      if (file.literals[literal->literal] > kSmallLiteral) {
        return fail(ErrorCode::OutOfMemory, "{}: text too long to be rendered ahead", file.path);
      }
    }
  }
  return scratch;
}

/// The parts of a piece's plan that are not the source's bytes in their order: text and small
/// tensors that are gathered. Gives the files that were read.
Result<std::vector<FileId>> Evaluator::fill_rest(const FileLayout& file, const Task& task,
                                                 std::span<std::byte> scratch, Want want) {
  std::vector<FileId> files;
  std::optional<std::uint32_t> rendered;  // a literal may come in many pieces, one after another
  std::string text;
  for (const PlanPart& part : task.plan->parts) {
    const std::span<std::byte> here = task.out.subspan(part.out.begin, part.out.size());
    if (const auto* literal = std::get_if<LiteralPart>(&part.what)) {
      if (rendered != literal->literal) text = file.render(literal->literal);
      rendered = literal->literal;
      std::memcpy(here.data(), text.data() + literal->offset, here.size());
    } else if (const auto* part_of = std::get_if<GatherPart>(&part.what)) {
      const std::uint64_t width = width_of(file.expr(part_of->tensor));
      const ByteRange bytes{part_of->begin, part_of->begin + here.size()};
      const std::uint64_t skip = bytes.begin % width;
      const GatherPlan gather = gather_plan(file, part_of->tensor, bytes);
      const std::size_t elements = (skip + here.size() + width - 1) / width * width;
      const std::size_t place = aligned(here.size() + kEdges);
      CKFS_TRY(const std::vector<FileId> read,
               gather_into(gather, scratch.subspan(place), scratch.first(elements), want));
      std::memcpy(here.data(), scratch.data() + skip, here.size());
      files.insert(files.end(), read.begin(), read.end());
    }
  }
  return files;
}

/// Where in its buffer a piece begins whose read is padded; nullopt: its read is not.
std::optional<std::size_t> Evaluator::padding_of(const ReadPlan& plan, Want want,
                                                 const Buffer& buffer) {
  if (!want.padded || plan.parts.size() != 1 || buffer.margin() < kDiskBlock) return std::nullopt;
  const auto* const copy = std::get_if<CopyPart>(&plan.parts.front().what);
  if (copy == nullptr) return std::nullopt;
  return copy->offset % kDiskBlock;
}

Result<void> Evaluator::pieces(const FileLayout& file, std::span<const ByteRange> ranges, Want want,
                               const Ready& ready) {
  std::vector<ReadPlan> plans;
  for (const ByteRange& range : ranges) plans.push_back(plan_read(file, range));
  std::size_t count = ranges.size();  // as many at once
  for (std::size_t first = 0; first < ranges.size();) {
    count = std::min(count, ranges.size() - first);
    const std::span<const ReadPlan> now = std::span(plans).subspan(first, count);
    const auto padding = want.padded ? RunReads::Padding::Yes : RunReads::Padding::No;
    const RunReads reads = (count == 1 && !want.padded) || file.definition == nullptr
                               ? now[0].reads
                               : reads_of(*file.definition->catalog, now, padding);
    std::vector<std::size_t> sizes;
    std::size_t scratch = reads.staging();
    for (std::size_t k = 0; k < count; ++k) {
      sizes.push_back(ranges[first + k].size());
      CKFS_TRY(const std::size_t more, scratch_of(file, now[k]));
      scratch = std::max(scratch, more);
    }
    sizes.push_back(scratch);
    auto buffers = memory(sizes, Patience::Refuse);
    if (!buffers && count > 1) {
      count = (count + 1) / 2;
      continue;
    }
    if (!buffers) return Failure(std::move(buffers).error());
    const TierScope holding(Tier::Tile);
    std::vector<Task> tasks;
    std::vector<std::vector<FileId>> files;
    for (std::size_t k = 0; k < count; ++k) {
      const Buffer& buffer = (*buffers)[k];
      const auto shift = padding_of(now[k], want, buffer);
      tasks.push_back(
          {&now[k], {buffer.data() + shift.value_or(0), buffer.size()}, shift.has_value()});
      CKFS_TRY(files.emplace_back(), fill_rest(file, tasks[k], buffers->back().span(), want));
    }
    CKFS_TRY_VOID(carry_out(tasks, reads, buffers->back().span(), want,
                            [&](std::size_t k, const std::vector<FileId>& read) {
                              files[k].insert(files[k].end(), read.begin(), read.end());
                              Buffer& buffer = (*buffers)[k];
                              const auto begin =
                                  static_cast<std::size_t>(tasks[k].out.data() - buffer.data());
                              ready(first + k, {std::move(buffer), ranges[first + k].size(),
                                                sorted_once(std::move(files[k])), begin});
                            }));
    first += count;
  }
  return {};
}

void Evaluator::make_tile(const FileLayout& file, std::uint64_t offset, Want want,
                          const std::function<bool()>& wanted) {
  const std::size_t at = file.find(offset);
  const std::uint32_t tensor = file.segments[at].id;
  const TilePosition place = place_of(file, tensor, offset - file.range(at).begin);
  const TileKey key = key_of(file, place);
  (void)cache_.compute(
      std::span(&key, 1),
      [&](std::span<const std::size_t> /*numbers*/, const TileCache::Ready& ready) -> Result<void> {
        if (!wanted()) return {};
        CKFS_TRY(Tile tile, gathered(file, tensor, place.tile, want, Patience::Refuse));
        ready(0, std::move(tile));
        return {};
      });
  // The reader jumped away, and will not pass it.
  if (!wanted()) cache_.retire(key);
}

TileKey Evaluator::tile_at(const FileLayout& file, std::uint64_t offset) const {
  const std::size_t at = file.find(offset);
  return key_of(file, place_of(file, file.segments[at].id, offset - file.range(at).begin));
}

void Evaluator::retire_tile(const FileLayout& file, std::uint64_t offset) {
  cache_.retire(tile_at(file, offset));
}

void Evaluator::drop_tile(const FileLayout& file, std::uint64_t offset) {
  cache_.drop(tile_at(file, offset));
}

std::vector<ByteRange> Evaluator::not_padded(const FileLayout& file, ByteRange range) const {
  std::vector<ByteRange> ranges;
  for (ByteRange rest = range; !rest.empty();) {
    const ByteRange segment = file.range(file.find(rest.begin));
    const ByteRange here = segment.intersect(rest);
    const Segment& at = file.segments[file.find(rest.begin)];
    const bool is_gathered = at.kind == Segment::Kind::Tensor && needs_tiles(file, at.id);
    const auto past_cache = [&] {
      return std::ranges::all_of(source_ranges(file, here), [this](const FileRange& read) {
        return source_.traits(read.file).reads_past_cache;
      });
    };
    if (segment.size() < kLargeTensor || is_gathered || !past_cache()) {
      if (!ranges.empty() && ranges.back().end == here.begin) {
        ranges.back().end = here.end;
      } else {
        ranges.push_back(here);
      }
    }
    rest.begin = here.end;
  }
  return ranges;
}

std::vector<FileRange> Evaluator::source_ranges(const FileLayout& file, ByteRange range) const {
  const ReadPlan plan = plan_read(file, range);
  std::vector<FileRange> ranges = ranges_of(plan);
  for (const PlanPart& part : plan.parts) {
    const auto* gathered = std::get_if<GatherPart>(&part.what);
    if (gathered == nullptr) continue;
    // All of each tile that begins in the range.
    const std::uint64_t end = gathered->begin + part.out.size();
    for (std::uint64_t byte = gathered->begin; byte < end;) {
      const TilePosition place = place_of(file, gathered->tensor, byte);
      const bool begins = byte == place.tile.begin;
      byte = place.tile.end;
      if (!begins) continue;
      if (const auto made = file.quantized(gathered->tensor)) {
        add_value_ranges(file, *made, place.tile, ranges);
        if (ranges.size() > kMostHints) return ranges;
        continue;
      }
      const GatherPlan gather = gather_plan(file, gathered->tensor, place.tile);
      for (std::size_t batch = 0; batch < gather.batches(); ++batch) {
        if (ranges.size() > kMostHints) return ranges;
        const std::vector<FileRange> more = gather.ranges(batch);
        ranges.insert(ranges.end(), more.begin(), more.end());
      }
    }
  }
  return ranges;
}

}  // namespace ckfs
