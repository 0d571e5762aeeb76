// A clipped box is a nest of loops over a storage. Sorted by source stride, its inner loops make up
// a run that is read as a whole (gaps included, where they are small), its outer loops enumerate
// runs. As many runs as the staging takes are a batch: read at once, decoded, and each group of
// equally spaced runs copied out by one nest.
//
// Where the source has the bytes in memory, runs are copied or decoded from there without staging:
// a narrow panel then touches only its own bytes of each page.
#include "engine/gather.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/rounding.h"
#include "engine/run_decoder.h"
#include "engine/source_bytes.h"
#include "engine/source_ranges.h"
#include "expr/steps.h"

namespace ckfs {
namespace {

/// Runs in one batch: bounds what a batch holds beside its staging.
constexpr std::int64_t kMostRuns = 4096;

/// The most staging that `count` runs of `span` elements need.
std::size_t staging_of(const Catalog& catalog, StorageId id, const Program* program,
                       std::int64_t span, std::int64_t count) {
  const Storage& storage = catalog.storage(id);
  const DType result = result_dtype(storage.value_dtype(), program);
  const std::size_t decoded = aligned(bytes_of(result, span * count));
  if (is_move(storage, program)) return decoded;
  return decoded + RunReads::most_staging(catalog, id, span, count);
}

/// The largest n in [1, most] with fits(n); 0 where even 1 does not fit. `fits` is monotone.
template <typename Fits>
std::int64_t largest(std::int64_t most, Fits fits) {
  std::int64_t low = 0;
  for (std::int64_t high = most; low < high;) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace

/// Equally spaced runs in memory: run k begins k * `stride` elements behind `first`.
struct GatherPlan::SpacedRuns {
  std::size_t box = 0;
  std::int64_t target_offset = 0;
  std::int64_t target_stride = 0;
  std::int64_t count = 0;
  const std::byte* first = nullptr;
  std::int64_t stride = 0;

  /// Whether the run at `at`, which goes to `to`, is the next one; then it is one of them.
  bool take(const std::byte* at, std::int64_t to, std::int64_t step, std::size_t width) {
    if (target_stride != step || target_offset + count * step != to) return false;
    const std::int64_t apart = (at - first) / static_cast<std::int64_t>(width);
    if (count == 1) stride = apart;
    if (apart != count * stride) return false;
    ++count;
    return true;
  }
};

/// Splits a box into runs that fit a staging.
class GatherPlan::Splitter {
 public:
  Splitter(const Catalog& catalog, std::size_t staging, std::vector<BoxRuns>& out)
      : catalog_(catalog), staging_(staging), out_(out) {}

  void add(const Box& box, std::int64_t begin) {
    BoxRuns runs;
    runs.source = box.source;
    runs.program = box.program;
    runs.source_offset = box.source_offset;
    runs.target_offset = box.target_offset - begin;
    if (box.is_constant()) {
      runs.repeated = box.loops;
      out_.push_back(std::move(runs));
      return;
    }
    std::vector<Loop> loops = box.loops;
    std::erase_if(loops, [&](const Loop& loop) {
      if (loop.source_stride == 0) runs.repeated.push_back(loop);
      return loop.source_stride == 0;
    });
    std::ranges::sort(loops, std::ranges::greater{},
                      [](const Loop& loop) { return std::abs(loop.source_stride); });
    split(std::move(runs), std::move(loops));
  }

 private:
  bool fits(const BoxRuns& runs, std::int64_t span) const {
    return staging_of(catalog_, runs.source, runs.program.get(), span, 1) <= staging_;
  }

  void split(BoxRuns runs, std::vector<Loop> loops) {
    const Granule granule = catalog_.storage(runs.source).encoding->granule();
    const auto bytes_of_elements = [&](std::int64_t elements) {
      // Each element of a granule along another dimension needs all the granule's bytes, and the
      // rows of a row of granules share them.
      const std::int64_t share = elements < granule.stride ? 1 : granule.elements;
      return static_cast<std::uint64_t>(elements) * granule.bytes /
             static_cast<std::uint64_t>(granule.stride == 1 ? granule.elements : share);
    };
    std::int64_t wanted = 1;
    while (!loops.empty()) {
      const Loop loop = loops.back();
      const std::int64_t stride = std::abs(loop.source_stride);
      // The bytes between are read where `io` would read them anyway, in one access for all.
      const std::uint64_t piece = bytes_of_elements(wanted);
      if (stride > runs.span &&
          !share_access(piece, bytes_of_elements(stride - runs.span), piece)) {
        break;
      }
      const std::int64_t turns = largest(
          loop.count, [&](std::int64_t n) { return fits(runs, runs.span + (n - 1) * stride); });
      if (turns <= 1) break;
      loops.pop_back();
      if (turns < loop.count) {
        add_parts(runs, loops, loop, turns, granule.block());
        return;
      }
      add_inner(runs, loop);
      wanted *= loop.count;
    }
    finish(std::move(runs), std::move(loops));
  }

  /// Runs of as many turns of `loop` as fit; the rest is one shorter run. Where the loop comes to
  /// borders of granules, runs begin and end there, so that no granule is read twice.
  void add_parts(const BoxRuns& runs, const std::vector<Loop>& outer, const Loop& loop,
                 std::int64_t turns, std::int64_t block) {
    std::int64_t head = 0;
    const std::int64_t period = block / std::gcd(block, std::abs(loop.source_stride));
    if (period > 1 && period <= turns && loop.source_stride > 0) {
      const std::int64_t begin = runs.source_offset - runs.shift;
      while (head < period && (begin + head * loop.source_stride) % block != 0) ++head;
      if (head == period) {
        head = 0;  // its turns all begin within granules
      } else {
        turns -= turns % period;
      }
    }
    head = std::min(head, loop.count);
    const std::int64_t whole = (loop.count - head) / turns * turns;
    const std::int64_t tail = loop.count - head - whole;
    if (head > 0) add_part(runs, outer, loop, 0, head, head);
    if (whole > 0) add_part(runs, outer, loop, head, whole, turns);
    if (tail > 0) add_part(runs, outer, loop, head + whole, tail, tail);
  }

  /// Turns [first, first + count) of `loop`, the next inner one, in runs of `turns`.
  void add_part(BoxRuns runs, std::vector<Loop> outer, const Loop& loop, std::int64_t first,
                std::int64_t count, std::int64_t turns) {
    runs.source_offset += first * loop.source_stride;
    runs.target_offset += first * loop.target_stride;
    if (turns > 1) add_inner(runs, {turns, loop.target_stride, loop.source_stride});
    outer.push_back({count / turns, loop.target_stride * turns, loop.source_stride * turns});
    finish(std::move(runs), std::move(outer));
  }

  static void add_inner(BoxRuns& runs, const Loop& loop) {
    runs.inner.insert(runs.inner.begin(), loop);
    runs.span += (loop.count - 1) * std::abs(loop.source_stride);
    if (loop.source_stride < 0) runs.shift -= (loop.count - 1) * loop.source_stride;
  }

  void finish(BoxRuns runs, std::vector<Loop> outer) {
    for (const Loop& loop : outer) runs.count *= loop.count;
    runs.outer = std::move(outer);
    out_.push_back(std::move(runs));
  }

  const Catalog& catalog_;
  const std::size_t staging_;
  std::vector<BoxRuns>& out_;
};

TileGeometry tile_geometry(const TensorExpr& expr, TileBytes bytes) {
  const auto width = static_cast<std::int64_t>(bytes_of(expr.dtype(), 1));
  const auto most = static_cast<std::int64_t>(bytes.most) / width;
  const auto good = std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes.good) / width);
  // The largest block of whole trailing dimensions.
  std::int64_t block = 1;
  std::size_t d = expr.shape().size();
  for (; d > 0 && block * expr.shape()[d - 1] <= most; --d) block *= expr.shape()[d - 1];
  const std::int64_t numel = std::max<std::int64_t>(1, expr.numel());
  if (d == 0) return {block > good ? numel : std::min(numel, good)};
  // As many of them as are good, in equal groups within the next dimension.
  const std::int64_t fitting = std::max<std::int64_t>(1, good / block);
  const std::int64_t extent = expr.shape()[d - 1];
  std::int64_t parts = ceil_div(extent, fitting);
  // Bounded, because each request asks this: the dimensions of models divide soon.
  constexpr std::int64_t kMostTries = 64;
  for (const std::int64_t last = parts + kMostTries;
       parts < last && extent % parts != 0 && extent / parts > fitting / 4;) {
    ++parts;
  }
  const std::int64_t group = extent % parts == 0 ? extent / parts : fitting;
  return {std::min(numel, group * block)};
}

GatherPlan GatherPlan::make(const Catalog& catalog, const TensorExpr& expr, std::int64_t begin,
                            std::int64_t end, std::size_t staging_bytes) {
  GatherPlan plan(catalog);
  plan.width_ = bytes_of(expr.dtype(), 1);
  const std::size_t most = staging_bytes / kBufferAlignment * kBufferAlignment;
  Splitter splitter(catalog, most, plan.boxes_);
  for (const Box& box : expr.boxes(begin, end)) splitter.add(box, begin);
  std::ranges::sort(plan.boxes_, {}, [&](const BoxRuns& box) {
    // Constants come last; storages by where they begin, which decides where disks and servers go.
    using Key = std::tuple<std::uint64_t, std::uint64_t, std::int64_t>;
    if (box.source == Box::kConstant) return Key{~std::uint64_t{0}, 0, box.target_offset};
    const FileRange first = catalog.place(catalog.storage(box.source).extents.front());
    return Key{first.file, first.offset, box.source_offset - box.shift};
  });

  std::size_t used = most;  // of the batch at hand: full, so that the first begins one
  std::int64_t runs = 0;
  for (std::size_t b = 0; b < plan.boxes_.size(); ++b) {
    const BoxRuns& box = plan.boxes_[b];
    const auto staging = [&](std::int64_t count) {
      if (box.source == Box::kConstant) return std::size_t{0};
      return staging_of(catalog, box.source, box.program.get(), box.span, count);
    };
    for (std::int64_t first = 0; first < box.count;) {
      std::int64_t count = largest(std::min(box.count - first, kMostRuns - runs),
                                   [&](std::int64_t n) { return staging(n) <= most - used; });
      if (count == 0 || plan.batches_.empty()) {
        plan.batches_.push_back(plan.items_.size());
        used = 0;
        runs = 0;
        if (count == 0) continue;
      }
      CKFS_CHECK(count > 0);
      const std::int64_t whole = plan.up_to_border(box, first, count);
      plan.items_.push_back({b, first, whole});
      first += whole;
      runs += whole;
      used += aligned(staging(whole));
      plan.staging_ = std::max(plan.staging_, used);
      if (whole < count) used = most;  // the rest begins the next batch
    }
  }
  return plan;
}

/// Runs of rows that share words with others: the most of [first, first + count) behind which
/// another row of words begins, so that no two batches read the same one.
std::int64_t GatherPlan::up_to_border(const BoxRuns& box, std::int64_t first,
                                      std::int64_t count) const {
  if (box.source == Box::kConstant || first + count == box.count) return count;
  const Granule granule = catalog_->storage(box.source).encoding->granule();
  if (granule.stride == 1 || count < granule.elements) return count;
  for (std::int64_t less = 0; less < granule.elements; ++less) {
    std::int64_t from = box.source_offset - box.shift;
    std::int64_t rest = first + count - less;
    for (std::size_t i = box.outer.size(); i-- > 0;) {
      from += rest % box.outer[i].count * box.outer[i].source_stride;
      rest /= box.outer[i].count;
    }
    if (from / granule.stride % granule.elements == 0) return count - less;
  }
  return count;
}

std::span<const GatherPlan::Item> GatherPlan::items(std::size_t batch) const {
  const std::size_t end = batch + 1 < batches_.size() ? batches_[batch + 1] : items_.size();
  return std::span(items_).subspan(batches_[batch], end - batches_[batch]);
}

/// Calls use(first element of the storage, target offset, target stride to the next run that is
/// spaced equally) for each run of the item.
template <typename Use>
void GatherPlan::for_each_run(const Item& item, Use use) const {
  const BoxRuns& box = boxes_[item.box];
  std::vector<std::int64_t> turn(box.outer.size());
  std::int64_t from = box.source_offset - box.shift;
  std::int64_t to = box.target_offset;
  std::int64_t rest = item.first;
  for (std::size_t i = turn.size(); i-- > 0;) {
    const Loop& loop = box.outer[i];
    turn[i] = rest % loop.count;
    rest /= loop.count;
    from += turn[i] * loop.source_stride;
    to += turn[i] * loop.target_stride;
  }
  const std::int64_t step = box.outer.empty() ? 0 : box.outer.back().target_stride;
  for (std::int64_t n = 0; n < item.count; ++n) {
    use(from, to, step);
    for (std::size_t i = turn.size(); i-- > 0;) {
      const Loop& loop = box.outer[i];
      from += loop.source_stride;
      to += loop.target_stride;
      if (++turn[i] < loop.count) break;
      from -= loop.count * loop.source_stride;
      to -= loop.count * loop.target_stride;
      turn[i] = 0;
    }
  }
}

/// Where the item's runs lie, if all of them are mapped.
GatherPlan::Mapped GatherPlan::map(const Item& item, SourceBytes& bytes) const {
  const BoxRuns& box = boxes_[item.box];
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = 0;
  for_each_run(item, [&](std::int64_t from, std::int64_t, std::int64_t) {
    first = std::min(first, from);
    last = std::max(last, from);
  });
  const ByteRange all{static_cast<std::uint64_t>(first) * width_,
                      static_cast<std::uint64_t>(last + box.span) * width_};
  const auto extents = catalog_->storage(box.source).extents_in(all);
  if (extents.size() != 1) return {};
  const Extent& extent = extents.front();
  // Without the bytes between the elements of a run: only a read must include those.
  std::int64_t elements = item.count;
  for (const Loop& loop : box.inner) elements *= loop.count;
  const auto used = static_cast<std::uint64_t>(elements) * width_;
  return {bytes.map({extent.file, extent.offset + (all.begin - extent.begin), all.size()},
                    std::min(all.size(), used)),
          first};
}

void GatherPlan::fill(const BoxRuns& box, std::span<std::byte> out, KernelSet kernels) const {
  const ConstantElement element(box.source_offset);
  std::vector<CopyLoop> loops;
  for (const Loop& loop : box.repeated) loops.push_back({loop.count, 0, loop.target_stride});
  copy_strided(loops, width_, element.bytes.data(),
               out.data() + static_cast<std::size_t>(box.target_offset) * width_, kernels);
}

Result<std::vector<FileId>> GatherPlan::run(std::size_t batch, ByteSource& source,
                                            std::span<std::byte> staging, std::span<std::byte> out,
                                            KernelSet kernels) const {
  CKFS_CHECK(batch < batches_.size() && staging.size() >= staging_);
  std::vector<ElementRun> runs;  // to decode, to consecutive places of `staging` in each item
  std::vector<std::size_t> decoded_at;
  std::vector<SpacedRuns> places;
  SourceBytes bytes(source);
  std::size_t used = 0;
  for (const Item& item : items(batch)) {
    const BoxRuns& box = boxes_[item.box];
    if (box.source == Box::kConstant) {
      fill(box, out, kernels);
      continue;
    }
    const bool move = is_move(catalog_->storage(box.source), box.program.get());
    const std::size_t size = static_cast<std::size_t>(box.span) * width_;
    std::size_t decoded = used;
    used += aligned(static_cast<std::size_t>(item.count) * size);
    const Mapped mapped = move ? map(item, bytes) : Mapped{};
    for_each_run(item, [&](std::int64_t from, std::int64_t to, std::int64_t step) {
      const std::byte* const at =
          mapped.data != nullptr
              ? mapped.data + static_cast<std::size_t>(from - mapped.first) * width_
              : staging.data() + decoded;
      if (places.empty() || places.back().box != item.box ||
          !places.back().take(at, to, step, width_)) {
        places.push_back({item.box, to, step, 1, at, 0});
      }
      if (mapped.data != nullptr) return;
      if (move) {
        const std::uint64_t begin = static_cast<std::uint64_t>(from) * width_;
        for_each_extent(catalog_->storage(box.source), {begin, begin + size},
                        [&](FileId file, std::uint64_t offset, ByteRange inside) {
                          bytes.add(file, offset,
                                    staging.subspan(decoded + inside.begin, inside.size()));
                        });
      } else {
        runs.push_back({box.source, from, box.span, box.program.get()});
        decoded_at.push_back(decoded);
      }
      decoded += size;
    });
  }
  const RunReads needed(*catalog_, runs);
  RunDecoder decoder(needed, bytes, staging.subspan(used), kernels);
  CKFS_TRY_VOID(bytes.fetch());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::size_t size = static_cast<std::size_t>(runs[i].count) * width_;
    if (auto done = decoder.decode(runs[i], 0, staging.subspan(decoded_at[i], size)); !done) {
      CKFS_TRY_VOID(bytes.check());
      return decode_failure(*catalog_, source, runs[i].storage, done.error());
    }
  }
  for (const SpacedRuns& place : places) {
    const BoxRuns& box = boxes_[place.box];
    std::vector<CopyLoop> loops{{place.count, place.stride, place.target_stride}};
    for (const Loop& loop : box.inner) {
      loops.push_back({loop.count, loop.source_stride, loop.target_stride});
    }
    for (const Loop& loop : box.repeated) loops.push_back({loop.count, 0, loop.target_stride});
    copy_strided(loops, width_, place.first + static_cast<std::size_t>(box.shift) * width_,
                 out.data() + static_cast<std::size_t>(place.target_offset) * width_, kernels);
  }
  CKFS_TRY_VOID(bytes.check());
  return bytes.files();
}

std::vector<FileRange> GatherPlan::ranges(std::size_t batch) const {
  std::vector<ElementRun> runs;
  for (const Item& item : items(batch)) {
    const BoxRuns& box = boxes_[item.box];
    if (box.source == Box::kConstant) continue;
    for_each_run(item, [&](std::int64_t from, std::int64_t, std::int64_t) {
      runs.push_back({box.source, from, box.span, box.program.get()});
    });
  }
  std::vector<FileRange> ranges;
  RunReads(*catalog_, runs).add_ranges(ranges);
  return joined(std::move(ranges));
}

std::size_t least_staging(const Catalog& catalog) {
  std::size_t least = 0;
  for (StorageId id = 0; id < catalog.storages().size(); ++id) {
    if (catalog.storage(id).numel == 0) continue;
    least = std::max(least, RunReads::most_staging(catalog, id, 1, 1));
  }
  for (const CatalogPart& part : catalog.parts()) {
    least = std::max(least, least_staging(*part.catalog) - kBufferAlignment);
  }
  return least + kBufferAlignment;  // and the element: no dtype has more than 16 bytes
}

}  // namespace ckfs
