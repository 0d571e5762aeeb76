// The planner walks the segments of the layout that the range touches and asks of each tensor one
// question: is the target run a stored run? If so the part names source bytes (Copy) or elements
// (Decode); only where runs are too short to be read one by one does it hand over to tiles
// (Gather). The choice is made for a tensor as a whole, never for a request, so that neighbouring
// requests share their tiles.
#include "engine/read_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/rounding.h"
#include "engine/source_ranges.h"

namespace ckfs {
namespace {

using PlanParts = std::vector<PlanPart>;

/// Adds the parts for bytes `run` of the run of elements that starts at element `first` of a
/// storage; `at` is where run.begin lies in the planned range.
void plan_run(const Catalog& catalog, StorageId id, std::int64_t first, ByteRange run,
              const Program* program, std::uint64_t at, PlanParts& parts) {
  const Storage& storage = catalog.storage(id);
  // Whole storages may have elements of 4 or 6 bits; they start at element 0, and bytes move.
  const std::uint64_t base = bytes_of(storage.value_dtype(), first);
  const bool move = is_move(storage, program);
  if (move || (storage.encoding->is_plain() && only_quiets_nans(storage.value_dtype(), *program))) {
    const std::uint64_t unit = move ? 1 : bytes_of(storage.value_dtype(), 1);
    const std::size_t before = parts.size();
    bool whole = true;
    for_each_extent(storage, {base + run.begin, base + run.end},
                    [&](FileId file, std::uint64_t offset, ByteRange inside) {
                      whole = whole && (run.begin + inside.begin) % unit == 0 &&
                              inside.size() % unit == 0;
                      parts.push_back({{at + inside.begin, at + inside.end},
                                       CopyPart{file, offset, storage.value_dtype(), !move}});
                    });
    if (whole) return;
    parts.resize(before);  // a request, or an extent, cuts an element
  }
  const std::uint64_t width = bytes_of(result_dtype(storage.value_dtype(), program), 1);
  const auto low = static_cast<std::int64_t>(run.begin / width);
  const auto high = static_cast<std::int64_t>(ceil_div(run.end, width));
  parts.push_back({{at, at + run.size()},
                   DecodePart{{id, first + low, high - low, program}, run.begin % width}});
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
              std::uint64_t at, PlanParts& parts) {
  if (!is_run(box)) {
    // All loops but the innermost are walked: it is a run, or the tensor would need tiles.
    const Loop outer = box.loops.front();
    Box inner = box;
    inner.loops.erase(inner.loops.begin());
    for (std::int64_t k = 0; k < outer.count; ++k) {
      plan_box(catalog, inner, width, bytes, at, parts);
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
    parts.push_back({{place, place + wanted.size()},
                     ConstantPart{box.source_offset, width, wanted.begin % width}});
  } else {
    plan_run(catalog, box.source, box.source_offset,
             {wanted.begin - run.begin, wanted.end - run.begin}, box.program.get(), place, parts);
  }
}

void plan_tensor(const FileLayout& layout, std::uint32_t tensor, ByteRange bytes, std::uint64_t at,
                 PlanParts& parts) {
  const Catalog& catalog = *layout.definition->catalog;
  const TensorExpr& expr = layout.expr(tensor);
  if (needs_tiles(layout, tensor)) {
    parts.push_back({{at, at + bytes.size()}, GatherPart{tensor, bytes.begin}});
    return;
  }
  if (const auto whole = expr.whole()) {
    plan_run(catalog, whole->storage, 0, bytes, whole->program.get(), at, parts);
    return;
  }
  const std::uint64_t width = bytes_of(expr.dtype(), 1);
  const auto begin = static_cast<std::int64_t>(bytes.begin / width);
  const auto end = static_cast<std::int64_t>(ceil_div(bytes.end, width));
  const std::size_t first = parts.size();
  for (const Box& box : expr.boxes(begin, end)) plan_box(catalog, box, width, bytes, at, parts);
  std::sort(parts.begin() + static_cast<std::ptrdiff_t>(first), parts.end(),
            [](const PlanPart& a, const PlanPart& b) { return a.out.begin < b.out.begin; });
}

}  // namespace

bool needs_tiles(const Catalog& catalog, const TensorExpr& expr) {
  if (const auto whole = expr.whole()) {
    return catalog.storage(whole->storage).encoding->granule().stride > 1;
  }
  const std::optional<std::int64_t> run = expr.shortest_run();
  return run && bytes_of(expr.dtype(), *run) < kShortestRun;
}

bool needs_tiles(const FileLayout& file, std::uint32_t tensor) {
  return file.quantized(tensor) || needs_tiles(*file.definition->catalog, file.expr(tensor));
}

RunReads reads_of(const Catalog& catalog, std::span<const ReadPlan> plans,
                  RunReads::Padding padding) {
  std::vector<ElementRun> runs;
  for (const ReadPlan& plan : plans) {
    for (const PlanPart& part : plan.parts) {
      if (const auto* decode = std::get_if<DecodePart>(&part.what)) runs.push_back(decode->run);
    }
  }
  return runs.empty() ? RunReads() : RunReads(catalog, runs, padding);
}

std::vector<FileRange> ranges_of(const ReadPlan& plan) {
  std::vector<FileRange> ranges;
  for (const PlanPart& part : plan.parts) {
    if (const auto* copy = std::get_if<CopyPart>(&part.what)) {
      ranges.push_back({copy->file, copy->offset, part.out.size()});
    }
  }
  plan.reads.add_ranges(ranges);
  return joined(std::move(ranges));
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
        plan.parts.push_back({out, LiteralPart{segment.id, segment.source_offset + inside}});
        break;
      case Segment::Kind::Tensor:
        plan_tensor(layout, segment.id, {inside, inside + wanted.size()}, at, plan.parts);
        break;
      case Segment::Kind::File:
        plan.parts.push_back({out, CopyPart{segment.id, segment.source_offset + inside}});
        break;
      case Segment::Kind::Zero:
        plan.parts.push_back({out, ConstantPart{}});
        break;
    }
  }
  if (layout.definition != nullptr) {
    plan.reads = reads_of(*layout.definition->catalog, std::span(&plan, 1));
  }
  return plan;
}

}  // namespace ckfs
