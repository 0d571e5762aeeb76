// The planner walks the segments of the layout that the range touches and asks of each tensor one
// question: is the target run a stored run? If so the part names source bytes (Copy) or elements
// (Decode); only where runs are too short to be read one by one does it hand over to tiles
// (Gather). The choice is made for a tensor as a whole, never for a request, so that neighbouring
// requests share their tiles.
#include "engine/read_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "engine/run_decoder.h"

namespace ckfs {
namespace {

/// Ranges of a hint that are no farther apart than this become one.
constexpr std::uint64_t kNearRanges = 4_KiB;

std::uint64_t element_bytes(DType dtype) {
  return static_cast<std::uint64_t>(bits(dtype)) / 8;
}

/// Adds the parts for bytes `run` of the run of elements that starts at element `first` of a
/// storage; `at` is where run.begin lies in the planned range.
void plan_run(const Catalog& catalog, StorageId id, std::int64_t first, ByteRange run,
              const Program* program, std::uint64_t at, ReadPlan& plan) {
  const Storage& storage = catalog.storage(id);
  if (is_move(storage, program)) {
    // Whole storages may have elements of 4 or 6 bits; they start at element 0, and bytes move.
    const std::uint64_t base =
        static_cast<std::uint64_t>(first) * static_cast<std::uint64_t>(bits(storage.dtype)) / 8;
    for_each_extent(storage, {base + run.begin, base + run.end},
                    [&](FileId file, std::uint64_t offset, std::uint64_t nbytes) {
                      plan.push_back({{at, at + nbytes}, CopyPart{file, offset}});
                      at += nbytes;
                    });
    return;
  }
  const std::uint64_t width = element_bytes(result_dtype(storage.value_dtype(), program));
  const auto low = static_cast<std::int64_t>(run.begin / width);
  const auto high = static_cast<std::int64_t>((run.end + width - 1) / width);
  plan.push_back(
      {{at, at + run.size()}, DecodePart{id, first + low, high - low, run.begin % width, program}});
}

/// A box is a run where its one loop moves both sides by one element.
bool is_run(const Box& box) {
  return box.loops.empty() || (box.loops.size() == 1 && box.loops[0].target_stride == 1 &&
                               (box.is_constant() || box.loops[0].source_stride == 1));
}

/// Plans each run of a box that lies within the wanted elements. `bytes` are the wanted bytes of
/// the tensor (a run may reach beyond them by a part of an element); `at` is where they begin in
/// the plan.
void plan_box(const Catalog& catalog, const Box& box, std::uint64_t width, ByteRange bytes,
              std::uint64_t at, ReadPlan& plan) {
  if (!is_run(box)) {
    // All loops but the innermost are walked: it is a run, or the tensor would need tiles.
    const Loop outer = box.loops.front();
    Box inner = box;
    inner.loops.erase(inner.loops.begin());
    for (std::int64_t k = 0; k < outer.count; ++k) {
      plan_box(catalog, inner, width, bytes, at, plan);
      inner.target_offset += outer.target_stride;
      inner.source_offset += outer.source_stride;
    }
    return;
  }
  const ByteRange run{static_cast<std::uint64_t>(box.target_offset) * width,
                      static_cast<std::uint64_t>(box.target_offset + box.numel()) * width};
  const ByteRange wanted = run.intersect(bytes);
  const std::uint64_t place = at + (wanted.begin - bytes.begin);
  if (box.is_constant()) {
    plan.push_back({{place, place + wanted.size()}, ZeroPart{}});
  } else {
    plan_run(catalog, box.source, box.source_offset,
             {wanted.begin - run.begin, wanted.end - run.begin}, box.program.get(), place, plan);
  }
}

void plan_tensor(const FileLayout& layout, std::uint32_t tensor, ByteRange bytes, std::uint64_t at,
                 ReadPlan& plan) {
  const Catalog& catalog = *layout.definition->catalog;
  const TensorExpr& expr = layout.definition->tensors[tensor].expr;
  if (const auto whole = expr.whole()) {
    plan_run(catalog, whole->storage, 0, bytes, whole->program.get(), at, plan);
    return;
  }
  if (needs_tiles(expr)) {
    plan.push_back({{at, at + bytes.size()}, GatherPart{tensor, bytes.begin}});
    return;
  }
  const std::uint64_t width = element_bytes(expr.dtype());
  const auto begin = static_cast<std::int64_t>(bytes.begin / width);
  const auto end = static_cast<std::int64_t>((bytes.end + width - 1) / width);
  const std::size_t first = plan.size();
  for (const Box& box : expr.boxes(begin, end)) plan_box(catalog, box, width, bytes, at, plan);
  std::sort(plan.begin() + static_cast<std::ptrdiff_t>(first), plan.end(),
            [](const PlanPart& a, const PlanPart& b) { return a.out.begin < b.out.begin; });
}

}  // namespace

DType result_dtype(DType value, const Program* program) {
  if (program == nullptr) return value;
  for (const Step& step : *program) value = step.dtype;
  return value;
}

bool needs_tiles(const TensorExpr& expr) {
  if (expr.whole()) return false;
  const std::uint64_t width = element_bytes(expr.dtype());
  for (const Box& box : expr.box_list()) {
    if (box.loops.empty()) continue;
    const Loop& inner = box.loops.back();
    const bool moves_together =
        inner.target_stride == 1 && (box.is_constant() || inner.source_stride == 1);
    const std::uint64_t run =
        moves_together ? static_cast<std::uint64_t>(inner.count) * width : width;
    // A box of one run is read as it is, however short.
    const bool single = moves_together && box.loops.size() == 1;
    if (!single && run < kShortestRun) return true;
  }
  return false;
}

std::vector<FileId> sorted_once(std::vector<FileId> files) {
  std::ranges::sort(files);
  const auto repeated = std::ranges::unique(files);
  files.erase(repeated.begin(), repeated.end());
  return files;
}

std::vector<FileId> files_of(std::span<const ReadRequest> batch) {
  std::vector<FileId> files;
  for (const ReadRequest& read : batch) {
    if (files.empty() || files.back() != read.file) files.push_back(read.file);
  }
  return sorted_once(std::move(files));
}

std::vector<FileRange> joined(std::vector<FileRange> ranges) {
  std::ranges::sort(ranges, {}, [](const FileRange& r) { return std::pair(r.file, r.offset); });
  std::vector<FileRange> result;
  for (const FileRange& range : ranges) {
    if (!result.empty()) {
      FileRange& last = result.back();
      const std::uint64_t end = last.offset + last.size;
      if (last.file == range.file && range.offset <= end + kNearRanges) {
        last.size = std::max(end, range.offset + range.size) - last.offset;
        continue;
      }
    }
    result.push_back(range);
  }
  return result;
}

ReadPlan plan_read(const FileLayout& layout, ByteRange range) {
  CKFS_CHECK(range.begin <= range.end && range.end <= layout.size);
  ReadPlan plan;
  if (range.empty()) return plan;
  for (std::size_t k = layout.find(range.begin); k < layout.segments.size(); ++k) {
    const Segment& segment = layout.segments[k];
    if (segment.begin >= range.end) break;
    const ByteRange place = layout.range(k);
    const ByteRange wanted = place.intersect(range);
    if (wanted.empty()) continue;
    const std::uint64_t inside = wanted.begin - place.begin;
    const std::uint64_t at = wanted.begin - range.begin;
    const ByteRange out{at, at + wanted.size()};
    switch (segment.kind) {
      case Segment::Kind::Literal:
        plan.push_back({out, LiteralPart{segment.id, segment.source_offset + inside}});
        break;
      case Segment::Kind::Tensor:
        plan_tensor(layout, segment.id, {inside, inside + wanted.size()}, at, plan);
        break;
      case Segment::Kind::File:
        plan.push_back({out, CopyPart{segment.id, segment.source_offset + inside}});
        break;
      case Segment::Kind::Zero:
        plan.push_back({out, ZeroPart{}});
        break;
    }
  }
  return plan;
}

}  // namespace ckfs
