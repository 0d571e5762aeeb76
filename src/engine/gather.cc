// A clipped box is a nest of loops over a storage. Sorted by source stride, its inner loops make up
// a run that is read as a whole (gaps included, where they are small), its outer loops enumerate
// runs. Runs are packed into the staging until it is full, read in one batch, decoded, and each
// group of equally spaced runs is copied out by one nest.
//
// The alternative, a mapping of the source from which a kernel gathers directly, is faster for
// narrow panels of page-cached files; but a truncated file must be an error, not a signal.
#include "engine/gather.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/units.h"
#include "engine/run_decoder.h"

namespace ckfs {
namespace {

/// Up to this many bytes between two pieces of a storage are read with them rather than skipped: a
/// request costs as much as copying some KiB.
constexpr std::int64_t kSmallGap = 4096;
/// At least this part of a run's bytes has to be wanted, where gaps are larger than that.
constexpr std::int64_t kDensity = 4;
/// Requests in one batch.
constexpr std::size_t kMostRuns = 4096;

/// A box whose loops are split into those inside a run and those that enumerate runs.
struct Nest {
  std::vector<Loop> outer;     // by the size of source_stride, largest first
  std::vector<Loop> inner;     // the same
  std::vector<Loop> repeated;  // source_stride 0: one element, many places
  std::int64_t span = 1;       // elements of a run
  std::int64_t shift = 0;      // how far into the run all inner indices are 0: loops may go down
};

/// Equally spaced runs in the staging: run k begins at `at` + k * span in the decoded elements.
struct Group {
  std::int64_t target_offset = 0;
  std::int64_t target_stride = 0;
  std::int64_t count = 0;
  std::size_t at = 0;  // byte in the decoded part
};

class Gatherer {
 public:
  Gatherer(const Catalog& catalog, ByteSource& source, std::size_t width, std::int64_t begin,
           std::span<std::byte> out, std::span<std::byte> staging, KernelSet kernels)
      : catalog_(catalog),
        source_(source),
        width_(width),
        begin_(begin),
        out_(out),
        raw_(staging.first(staging.size() / 2)),
        decoded_(staging.subspan(staging.size() / 2)),
        kernels_(kernels) {}

  Result<void> gather(const Box& box) {
    storage_ = box.source;
    program_ = box.program.get();
    nest_ = split(box.loops);
    CKFS_TRY_VOID(enumerate(0, box.source_offset, box.target_offset));
    return flush();
  }

 private:
  bool fits(std::int64_t span) const {
    const RunNeeds needs = most_needs(catalog_, storage_, span, program_);
    return needs.staging <= raw_.size() && needs.out <= decoded_.size();
  }

  Nest split(std::vector<Loop> loops) const {
    Nest nest;
    std::erase_if(loops, [&](const Loop& loop) {
      if (loop.source_stride == 0) nest.repeated.push_back(loop);
      return loop.source_stride == 0;
    });
    std::sort(loops.begin(), loops.end(), [](const Loop& a, const Loop& b) {
      return std::abs(a.source_stride) > std::abs(b.source_stride);
    });
    const std::int64_t stored_bits = bits(catalog_.storage(storage_).dtype);
    std::int64_t wanted = 1;
    while (!loops.empty()) {
      Loop loop = loops.back();
      const std::int64_t stride = std::abs(loop.source_stride);
      const std::int64_t gap = (stride - nest.span) * stored_bits / 8;
      const std::int64_t span = nest.span + (loop.count - 1) * stride;
      const bool dense = gap <= kSmallGap || wanted * loop.count >= span / kDensity;
      if (!dense) break;
      loops.pop_back();
      if (fits(span)) {
        add_inner(nest, loop);
        wanted *= loop.count;
        continue;
      }
      // As many iterations as fit become a run, the rest enumerates such runs.
      std::int64_t low = 1;
      for (std::int64_t high = loop.count; high - low > 1;) {
        const std::int64_t middle = low + (high - low) / 2;
        (fits(nest.span + (middle - 1) * stride) ? low : high) = middle;
      }
      // Equal parts, for a remainder would need runs of a second length.
      while (loop.count % low != 0) --low;
      if (low > 1) add_inner(nest, {low, loop.target_stride, loop.source_stride});
      loops.push_back({loop.count / low, loop.target_stride * low, loop.source_stride * low});
      break;
    }
    nest.outer = std::move(loops);
    return nest;
  }

  static void add_inner(Nest& nest, const Loop& loop) {
    nest.inner.insert(nest.inner.begin(), loop);
    nest.span += (loop.count - 1) * std::abs(loop.source_stride);
    if (loop.source_stride < 0) nest.shift -= (loop.count - 1) * loop.source_stride;
  }

  /// Adds the runs of outer loops `level` and further.
  Result<void> enumerate(std::size_t level, std::int64_t from, std::int64_t to) {
    if (level == nest_.outer.size()) return add_run(from, to, 0);
    const Loop& loop = nest_.outer[level];
    for (std::int64_t k = 0; k < loop.count; ++k) {
      if (level + 1 == nest_.outer.size()) {
        CKFS_TRY_VOID(add_run(from, to, loop.target_stride));
      } else {
        CKFS_TRY_VOID(enumerate(level + 1, from, to));
      }
      from += loop.source_stride;
      to += loop.target_stride;
    }
    return {};
  }

  Result<void> add_run(std::int64_t from, std::int64_t to, std::int64_t target_stride) {
    const Run run{storage_, from - nest_.shift, nest_.span, program_};
    const RunNeeds needs = run_needs(catalog_, run);
    if (runs_.size() == kMostRuns || raw_used_ + needs.staging > raw_.size() ||
        decoded_used_ + needs.out > decoded_.size()) {
      CKFS_TRY_VOID(flush());
    }
    const bool follows = !groups_.empty() && groups_.back().target_stride == target_stride &&
                         groups_.back().target_offset + groups_.back().count * target_stride == to;
    if (follows) {
      ++groups_.back().count;
    } else {
      groups_.push_back({to, target_stride, 1, decoded_used_});
    }
    runs_.push_back(run);
    if (is_move(catalog_.storage(storage_), program_)) {
      add_reads(catalog_, run, decoded_.subspan(decoded_used_, needs.out), batch_);
    } else {
      add_reads(catalog_, run, raw_.subspan(raw_used_, needs.staging), batch_);
      raw_used_ += needs.staging;
    }
    decoded_used_ += needs.out;
    return {};
  }

  Result<void> flush() {
    if (runs_.empty()) return {};
    CKFS_TRY_VOID(source_.read(batch_));
    if (!is_move(catalog_.storage(storage_), program_)) {
      std::size_t raw = 0;
      std::size_t decoded = 0;
      for (const Run& run : runs_) {
        const RunNeeds needs = run_needs(catalog_, run);
        decode_run(catalog_, run, raw_.subspan(raw, needs.staging),
                   decoded_.subspan(decoded, needs.out), kernels_);
        raw += needs.staging;
        decoded += needs.out;
      }
    }
    for (const Group& group : groups_) copy_out(group);
    runs_.clear();
    groups_.clear();
    batch_.clear();
    raw_used_ = decoded_used_ = 0;
    return {};
  }

  void copy_out(const Group& group) const {
    std::vector<CopyLoop> loops;
    loops.push_back({group.count, nest_.span, group.target_stride});
    for (const Loop& loop : nest_.inner) {
      loops.push_back({loop.count, loop.source_stride, loop.target_stride});
    }
    for (const Loop& loop : nest_.repeated) loops.push_back({loop.count, 0, loop.target_stride});
    const auto place = static_cast<std::size_t>(group.target_offset - begin_) * width_;
    const std::byte* in =
        decoded_.data() + group.at + static_cast<std::size_t>(nest_.shift) * width_;
    copy_strided(loops, width_, in, out_.data() + place, kernels_);
  }

  const Catalog& catalog_;
  ByteSource& source_;
  const std::size_t width_;
  const std::int64_t begin_;
  const std::span<std::byte> out_, raw_, decoded_;
  const KernelSet kernels_;

  // Of the box at hand.
  StorageId storage_ = 0;
  const Program* program_ = nullptr;
  Nest nest_;
  // Of the batch at hand.
  std::vector<Run> runs_;
  std::vector<Group> groups_;
  std::vector<ReadRequest> batch_;
  std::size_t raw_used_ = 0;
  std::size_t decoded_used_ = 0;
};

}  // namespace

TileGeometry tile_geometry(const Catalog& catalog, const TensorExpr& expr,
                           std::uint64_t tile_bytes) {
  const std::int64_t width = bits(expr.dtype()) / 8;
  const std::int64_t most =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(tile_bytes) / width);
  // The largest block of whole trailing dimensions, then as many of them as fit.
  std::int64_t block = 1;
  for (std::size_t d = expr.shape().size(); d-- > 0;) {
    if (block * expr.shape()[d] > most) break;
    block *= expr.shape()[d];
  }
  TileGeometry geometry;
  geometry.elements = std::min(std::max<std::int64_t>(1, expr.numel()), most / block * block);
  // Half of the staging holds what is read, half what is decoded; both have to take one element of
  // any box, which with its companions can be some KiB.
  std::size_t least = 0;
  for (const Box& box : expr.box_list()) {
    if (box.is_constant()) continue;
    const RunNeeds needs = most_needs(catalog, box.source, 1, box.program.get());
    least = std::max({least, needs.staging, needs.out});
  }
  geometry.staging =
      std::max<std::size_t>(2 * least, std::clamp<std::uint64_t>(tile_bytes, 64_KiB, 8_MiB));
  geometry.staging = (geometry.staging + 127) / 128 * 128;
  return geometry;
}

Result<void> gather(const Catalog& catalog, ByteSource& source, const TensorExpr& expr,
                    std::int64_t begin, std::int64_t end, std::span<std::byte> out,
                    std::span<std::byte> staging, KernelSet kernels) {
  const auto width = static_cast<std::size_t>(bits(expr.dtype())) / 8;
  CKFS_CHECK(out.size() == static_cast<std::size_t>(end - begin) * width);
  const std::vector<Box> boxes = expr.boxes(begin, end);
  if (std::any_of(boxes.begin(), boxes.end(), [](const Box& box) { return box.is_constant(); })) {
    std::memset(out.data(), 0, out.size());
  }
  Gatherer gatherer(catalog, source, width, begin, out, staging, kernels);
  for (const Box& box : boxes) {
    if (!box.is_constant()) CKFS_TRY_VOID(gatherer.gather(box));
  }
  return {};
}

}  // namespace ckfs
