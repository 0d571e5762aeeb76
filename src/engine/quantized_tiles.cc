// Whole units are computed, by all workers that are idle, slab by slab. When a reader asks for
// codes before their scales, both are made in one pass, and the scales are kept.
#include "engine/quantized_tiles.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <utility>

#include "base/rounding.h"
#include "base/stop.h"
#include "base/units.h"
#include "engine/evaluator.h"
#include "engine/source_ranges.h"
#include "tensor/quantize.h"

namespace ckfs {
namespace {

// What a quantizer makes is computed in tiles of whole units, and a tile in slabs: values that are
// read, and made codes of, at once. A tile of codes is several slabs, which workers share; a tile
// of scales may need all values of a weight.
constexpr std::uint64_t kQuantizedTile = 8_MiB;     // bytes of it
constexpr std::uint64_t kQuantizedValues = 64_MiB;  // bytes of values for it
constexpr std::uint64_t kSlab = 2_MiB;              // bytes of values

/// Values that have units of all outputs to themselves, unless these are many: then of this one.
std::int64_t values_together(const Quantizer& quantizer, std::size_t output) {
  const std::int64_t own = quantizer.unit(output).elements;
  std::int64_t most = own;
  for (std::size_t k = 0; k < quantizer.outputs().size(); ++k) {
    most = std::max(most, quantizer.unit(k).elements);
  }
  const bool few = bytes_of(quantizer.from(), most) <= kSlab;
  return few && most % own == 0 ? most : own;
}

/// An expression as a file by itself, whose bytes are its elements'.
FileLayout layout_of(const FileLayout& file, const TensorExpr& expr, std::uint32_t tensor) {
  FileLayout layout;
  layout.path = file.path;
  layout.size = expr.nbytes();
  layout.definition = file.definition;
  layout.chunks.push_back({expr, tensor});
  if (layout.size > 0) layout.segments.push_back({0, 0, 0, Segment::Kind::Tensor});
  return layout;
}

/// Equal parts of `elements` with as many bytes of values as a slab has, of whole units.
std::vector<ElementRange> slabs_of(ElementRange elements, std::int64_t unit, std::uint64_t width) {
  const auto most = static_cast<std::int64_t>(kSlab / width);
  const std::int64_t each = std::max<std::int64_t>(1, most / unit) * unit;
  std::vector<ElementRange> slabs;
  for (std::int64_t at = elements.first; at < elements.end(); at += each) {
    slabs.push_back({at, std::min(each, elements.end() - at)});
  }
  return slabs;
}

}  // namespace

std::uint64_t quantized_tile(const QuantizedPart& part, TileBytes most) {
  const Quantizer& quantizer = *part.weight->quantizer;
  const Quantizer::Unit unit = quantizer.unit(part.output);
  if (unit.elements == 0) return std::max<std::uint64_t>(1, part.facts().nbytes);
  const std::int64_t together = values_together(quantizer, part.output);
  const auto units = static_cast<std::uint64_t>(together / unit.elements);
  const std::uint64_t times = std::min(std::min(kQuantizedTile, most.good) / (unit.bytes * units),
                                       kQuantizedValues / bytes_of(quantizer.from(), together));
  return std::max<std::uint64_t>(1, times) * units * unit.bytes;
}

void add_value_ranges(const FileLayout& file, const QuantizedPart& part, ByteRange tile,
                      std::vector<FileRange>& ranges) {
  const ElementRange elements = part.weight->quantizer->elements_of(part.output, tile);
  if (elements.count == 0) return;
  const FileLayout values = layout_of(file, part.weight->values, 0);
  const std::uint64_t width = width_of(part.weight->values);
  for (const ElementRange& slab : slabs_of(elements, 1, width)) {
    if (ranges.size() > kMostHints) return;
    const ReadPlan plan = plan_read(values, {static_cast<std::uint64_t>(slab.first) * width,
                                             static_cast<std::uint64_t>(slab.end()) * width});
    const std::vector<FileRange> more = ranges_of(plan);
    ranges.insert(ranges.end(), more.begin(), more.end());
  }
}

/// Reads values of one weight for a quantizer: its own, and those of the tensor beside it.
class Evaluator::ValueReads {
 public:
  ValueReads(Evaluator& evaluator, const FileLayout& file, const QuantizedTensor& weight)
      : evaluator_(evaluator), each_(weight.quantizer->values_each()) {
    layouts_.push_back(layout_of(file, weight.values, 0));
    widths_.push_back(width_of(weight.values));
    if (weight.beside) {
      layouts_.push_back(layout_of(file, *weight.beside, 0));
      widths_.push_back(width_of(*weight.beside));
    }
  }

  /// Memory for the values of any of `slabs`, and to read them.
  Result<std::size_t> memory(std::span<const ElementRange> slabs) const {
    std::size_t most = 0;
    for (const ElementRange& slab : slabs) {
      std::size_t values = 0, scratch = 0;
      for (std::size_t k = 0; k < layouts_.size(); ++k) {
        const ReadPlan plan = plan_read(layouts_[k], bytes(k, slab));
        CKFS_TRY(const std::size_t gathers, evaluator_.scratch_of(layouts_[k], plan));
        values += aligned(bytes(k, slab).size());
        scratch = std::max({scratch, plan.scratch(), gathers});
      }
      most = std::max(most, values + scratch);
    }
    return most;
  }

  /// Reads the values of a slab into `room`, and adds the files that they are from. Requires:
  /// room.size() >= memory() of it.
  Result<Quantizer::Values> read(ElementRange slab, std::span<std::byte> room, Want want,
                                 std::vector<FileId>& files) const {
    std::array<std::span<std::byte>, 2> values;
    for (std::size_t k = 0; k < layouts_.size(); ++k) {
      values[k] = room.first(bytes(k, slab).size());
      room = room.subspan(aligned(values[k].size()));
    }
    for (std::size_t k = 0; k < layouts_.size(); ++k) {
      const ReadPlan plan = plan_read(layouts_[k], bytes(k, slab));
      const Task task{&plan, values[k]};
      CKFS_TRY(const std::vector<FileId> gathered,
               evaluator_.fill_rest(layouts_[k], task, room, want));
      files.insert(files.end(), gathered.begin(), gathered.end());
      CKFS_TRY_VOID(evaluator_.carry_out(std::span(&task, 1), plan.reads, room, want,
                                         [&](std::size_t, const std::vector<FileId>& read) {
                                           files.insert(files.end(), read.begin(), read.end());
                                         }));
    }
    return Quantizer::Values{
        .values = values[0].data(), .beside = values[1].data(), .kernels = evaluator_.kernels_};
  }

 private:
  ByteRange bytes(std::size_t k, ElementRange slab) const {
    const std::int64_t each = k == 0 ? 1 : each_;
    return {static_cast<std::uint64_t>(slab.first / each) * widths_[k],
            static_cast<std::uint64_t>(slab.end() / each) * widths_[k]};
  }

  Evaluator& evaluator_;
  const std::int64_t each_;
  std::vector<FileLayout> layouts_;
  std::vector<std::uint64_t> widths_;
};

/// Scales that were made with the codes of a weight. A tile of codes has one entry for each other
/// output, named by the number of that tile.
class Evaluator::Kept {
 public:
  Kept(Evaluator& evaluator, const FileLayout& file, const QuantizedPart& part)
      : evaluator_(evaluator),
        quantizer_(*part.weight->quantizer),
        serial_(file.definition->serial),
        weight_(static_cast<std::uint32_t>(part.weight - file.definition->weights.data())) {
    const std::uint64_t tile = quantized_tile({part.weight, 0}, evaluator.tile_bytes_);
    const Quantizer::Unit unit = quantizer_.unit(0);
    each_ = unit.elements * static_cast<std::int64_t>(tile / unit.bytes);
  }

  /// The outputs that are kept beside the codes of `elements`.
  std::vector<std::size_t> outputs(ElementRange elements) const {
    std::vector<std::size_t> made;
    if (elements.first % each_ != 0) return made;
    if (elements.count != each_ && elements.end() != quantizer_.numel()) return made;
    for (std::size_t k = 1; k < quantizer_.outputs().size(); ++k) {
      const std::int64_t unit = quantizer_.unit(k).elements;
      const auto ends = [&](std::int64_t at) { return at % unit == 0 || at == quantizer_.numel(); };
      if (unit > 0 && ends(elements.first) && ends(elements.end())) made.push_back(k);
    }
    return made;
  }

  void put(std::size_t output, ElementRange elements, Tile tile) {
    const TileKey key = key_of(output, elements.first / each_);
    (void)evaluator_.cache_.compute(
        std::span(&key, 1),
        [&](std::span<const std::size_t>, const TileCache::Ready& ready) -> Result<void> {
          ready(0, std::move(tile));
          return {};
        });
  }

  /// Copies the bytes of an output that `elements` have, if all of them are kept. Gives the files
  /// that they were made of.
  std::optional<std::vector<FileId>> take(std::size_t output, ElementRange elements,
                                          std::span<std::byte> out) {
    std::vector<FileId> files;
    const ByteRange wanted = quantizer_.bytes_of(output, elements);
    const std::int64_t first = elements.first / each_, last = (elements.end() - 1) / each_;
    for (std::int64_t k = first; k <= last; ++k) {
      const auto tile = evaluator_.cache_.find(key_of(output, k));
      if (!tile || !evaluator_.verify(tile->files)) return std::nullopt;
      const ElementRange has{k * each_, std::min(each_, quantizer_.numel() - k * each_)};
      const ByteRange place = quantizer_.bytes_of(output, has);
      const ByteRange here = place.intersect(wanted);
      std::memcpy(out.data() + (here.begin - wanted.begin),
                  tile->span().data() + (here.begin - place.begin), here.size());
      files.insert(files.end(), tile->files.begin(), tile->files.end());
    }
    for (std::int64_t k = first; k <= last; ++k) evaluator_.cache_.retire(key_of(output, k));
    return files;
  }

 private:
  TileKey key_of(std::size_t output, std::int64_t tile) const {
    return {serial_, TileKey::Kind::Scales, weight_,
            static_cast<std::uint64_t>(tile) * quantizer_.outputs().size() + output};
  }

  Evaluator& evaluator_;
  const Quantizer& quantizer_;
  const std::uint64_t serial_;
  const std::uint32_t weight_;
  std::int64_t each_ = 1;  // values of a tile of codes
};

/// Whole units that hold bytes `bytes` of what a quantizer makes. A largest value that they need is
/// found before any memory is held, because that may need memory of the same tier.
Result<Tile> Evaluator::quantized(const FileLayout& file, std::uint32_t tensor, ByteRange bytes,
                                  Want want, Patience patience) {
  const QuantizedPart part = *file.quantized(tensor);
  const Quantizer& quantizer = *part.weight->quantizer;
  float maximum = 0;
  std::vector<FileId> files;
  if (quantizer.needs_maximum(part.output)) {
    CKFS_TRY(maximum, maximum_of(file, part, want, patience));
  }
  const auto named = [&](const Error& error) {
    return Failure(error.within(fmt::format("\"{}\"", part.weight->name)));
  };
  const ElementRange elements = quantizer.elements_of(part.output, bytes);
  const ByteRange whole = quantizer.bytes_of(part.output, elements);
  if (elements.count == 0) {
    CKFS_TRY(std::vector<Buffer> buffers,
             memory(std::array<std::size_t, 1>{whole.size()}, patience));
    auto made = quantizer.quantize(part.output, elements, {.maximum = maximum},
                                   buffers[0].span().first(whole.size()));
    if (!made) return named(made.error());
    return Tile{std::move(buffers[0]), whole.size(), {}};
  }
  Kept kept(*this, file, part);
  if (want.keep_scales && part.output != 0) {
    CKFS_TRY(std::vector<Buffer> buffers,
             memory(std::array<std::size_t, 1>{whole.size()}, patience));
    auto taken = kept.take(part.output, elements, buffers[0].span().first(whole.size()));
    if (taken) return Tile{std::move(buffers[0]), whole.size(), sorted_once(*std::move(taken))};
  }
  const bool aligned_to_all = elements.first % values_together(quantizer, part.output) == 0;
  const std::vector<ElementRange> slabs =
      slabs_of(elements,
               aligned_to_all ? values_together(quantizer, part.output)
                              : quantizer.unit(part.output).elements,
               width_of(part.weight->values));
  const ValueReads reads(*this, file, *part.weight);
  CKFS_TRY(const std::size_t room, reads.memory(slabs));
  const std::vector<std::size_t> beside =
      want.keep_scales && part.output == 0 ? kept.outputs(elements) : std::vector<std::size_t>();
  std::vector<std::size_t> sizes{whole.size(), room};
  for (const std::size_t k : beside) sizes.push_back(quantizer.bytes_of(k, elements).size());
  CKFS_TRY(std::vector<Buffer> buffers, memory(sizes, patience));
  const TierScope holding(Tier::Tile);
  const std::span<std::byte> out = buffers[0].span().first(whole.size());
  CKFS_TRY(files, each_slab(slabs, room, buffers[1].span(),
                            [&](ElementRange slab, std::span<std::byte> own,
                                std::vector<FileId>& read) -> Result<void> {
                              CKFS_TRY(Quantizer::Values values, reads.read(slab, own, want, read));
                              values.maximum = maximum;
                              const ByteRange place = quantizer.bytes_of(part.output, slab);
                              auto made = quantizer.quantize(
                                  part.output, slab, values,
                                  out.subspan(place.begin - whole.begin, place.size()));
                              if (!made) return named(made.error());
                              for (std::size_t i = 0; i < beside.size(); ++i) {
                                const ByteRange all = quantizer.bytes_of(beside[i], elements);
                                const ByteRange own_part = quantizer.bytes_of(beside[i], slab);
                                made = quantizer.quantize(
                                    beside[i], slab, values,
                                    buffers[2 + i].span().subspan(own_part.begin - all.begin,
                                                                  own_part.size()));
                                if (!made) return named(made.error());
                              }
                              return {};
                            }));
  for (std::size_t i = 0; i < beside.size(); ++i) {
    kept.put(beside[i], elements, {std::move(buffers[2 + i]), sizes[2 + i], files});
  }
  return Tile{std::move(buffers[0]), whole.size(), std::move(files)};
}

/// The largest magnitude of the weight's values and of those of its set; kept, because thousands of
/// tiles need it.
Result<float> Evaluator::maximum_of(const FileLayout& file, const QuantizedPart& part, Want want,
                                    Patience patience) {
  const Definition& definition = *file.definition;
  const TileKey key{definition.serial, TileKey::Kind::Maximum, part.weight->set, 0};
  CKFS_TRY(const auto kept, cache_.get(key, [&]() -> Result<Tile> {
    Mutex mutex;
    float most = 0;  // guarded by mutex
    std::vector<FileId> files;
    for (const std::uint32_t member : definition.sets[part.weight->set]) {
      const QuantizedTensor& weight = definition.weights[member];
      const DType from = weight.quantizer->from();
      const std::uint64_t width = width_of(weight.values);
      const std::vector<ElementRange> slabs = slabs_of({0, weight.quantizer->numel()}, 1, width);
      const ValueReads reads(*this, file, weight);
      CKFS_TRY(const std::size_t room, reads.memory(slabs));
      CKFS_TRY(std::vector<Buffer> buffers, memory(std::array<std::size_t, 1>{room}, patience));
      const TierScope holding(Tier::Tile);
      CKFS_TRY(const std::vector<FileId> more,
               each_slab(slabs, room, buffers[0].span(),
                         [&](ElementRange slab, std::span<std::byte> own,
                             std::vector<FileId>& read) -> Result<void> {
                           CKFS_TRY(const Quantizer::Values values,
                                    reads.read(slab, own, want, read));
                           float top = 0;
                           const auto count = static_cast<std::size_t>(slab.count);
                           find_maxima(from, kernels_)(values.values, count, &top, count);
                           const MutexLock lock(mutex);
                           if (std::isnan(top) || top > most) most = top;
                           return {};
                         }));
      files.insert(files.end(), more.begin(), more.end());
    }
    CKFS_TRY(std::vector<Buffer> buffers,
             memory(std::array<std::size_t, 1>{sizeof(most)}, patience));
    std::memcpy(buffers[0].data(), &most, sizeof(most));
    return Tile{std::move(buffers[0]), sizeof(most), sorted_once(std::move(files))};
  }));
  CKFS_TRY_VOID(verify(kept->files));
  float maximum = 0;
  std::memcpy(&maximum, kept->span().data(), sizeof(maximum));
  return maximum;
}

/// Calls `use(slab, room, files)` for each slab, by this thread and the workers that come to help,
/// each with `room` bytes of its own. Gives the files of all.
template <typename Use>
Result<std::vector<FileId>> Evaluator::each_slab(std::span<const ElementRange> slabs,
                                                 std::size_t room, std::span<std::byte> first,
                                                 Use use) {
  Mutex mutex;
  std::vector<FileId> files;  // guarded by mutex
  CKFS_TRY_VOID(workers_.share(slabs.size(), [&](Workers::Claims& claims, bool helper) {
    std::optional<Buffer> own;
    if (helper && !(own = memory_of_helper(room))) return;
    const TierScope holding(Tier::Tile);
    std::vector<FileId> read;
    while (const auto number = claims.next()) {
      if (stop_asked()) return claims.fail(stopped("a tile").value());
      auto used = use(slabs[*number], helper ? own->span() : first, read);
      if (!used) return claims.fail(used.error());
    }
    const MutexLock lock(mutex);
    files.insert(files.end(), read.begin(), read.end());
  }));
  return sorted_once(std::move(files));
}

}  // namespace ckfs
