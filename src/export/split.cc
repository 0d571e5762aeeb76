// Ranges: the files, one after another by path, are a line along which cost adds up. Cut k lies
// where k / parts of the whole is reached. So a process writes neighbours, which are near each
// other in the source, too.
//
// Files: the most expensive first, each to the process that has the least so far.
#include "export/split.h"

#include <algorithm>
#include <numeric>
#include <queue>

#include "api/inside.h"
#include "base/parallel.h"
#include "base/rounding.h"
#include "container/view_files.h"
#include "engine/read_plan.h"

namespace ckfs {

namespace {

using Wide = unsigned __int128;

/// A place between two bytes of a view. A cut at the end of a file is one at the start of the next.
struct Cut {
  std::size_t file = 0;
  std::uint64_t offset = 0;

  auto operator<=>(const Cut&) const = default;
};

/// The cost of all bytes of a tensor, or of a chunk of one.
CostSpan span_of(const Catalog& catalog, const TensorExpr& expr) {
  CostSpan span{.cost = expr.nbytes(), .tiled = needs_tiles(catalog, expr)};
  const auto add = [&](StorageId id, std::int64_t elements, const Program* program) {
    const Storage& storage = catalog.storage(id);
    if ((is_move(storage, program) && !span.tiled) || storage.numel == 0) return;
    span.cost += static_cast<std::uint64_t>(static_cast<Wide>(storage.nbytes()) *
                                            static_cast<std::uint64_t>(elements) /
                                            static_cast<std::uint64_t>(storage.numel));
  };
  if (const auto whole = expr.whole()) {
    add(whole->storage, expr.numel(), whole->program.get());
  } else {
    for (const Box& box : expr.box_list()) {
      if (!box.is_constant()) add(box.source, box.numel(), expr.steps_of(box).get());
    }
  }
  return span;
}

FileCost cost_of(const Catalog& catalog, const FileLayout& layout) {
  FileCost file;
  for (std::size_t i = 0; i < layout.segments.size(); ++i) {
    const Segment& segment = layout.segments[i];
    const ByteRange range = layout.range(i);
    if (range.empty()) continue;
    CostSpan span{.cost = range.size()};
    if (segment.kind == Segment::Kind::Tensor) {
      span = {.cost = 0, .tiled = needs_tiles(layout, segment.id)};
      for (const TensorExpr* expr : layout.sources(segment.id)) {
        span.cost += cost_of(catalog, *expr);
      }
    }
    span.end = range.end;
    file.spans.push_back(span);
  }
  return file;
}

class Cutter {
 public:
  Cutter(std::span<const FileCost> files, unsigned parts) : files_(files), ranges_(parts) {
    begins_.reserve(files.size() + 1);
    begins_.push_back(0);
    for (const FileCost& file : files) begins_.push_back(begins_.back() + file.cost());
  }

  Cut cut(unsigned number) const {
    if (number == 0) return {0, 0};
    if (number == ranges_) return {files_.size(), 0};
    const auto target =
        static_cast<std::uint64_t>(static_cast<Wide>(begins_.back()) * number / ranges_);
    const std::uint64_t near = begins_.back() / ranges_ / kBorderShare;
    // The file in which the target lies: the last that begins at or before it and is not empty.
    const auto after = std::upper_bound(begins_.begin(), begins_.end(), target);
    const auto file =
        std::min(static_cast<std::size_t>(after - begins_.begin()) - 1, files_.size() - 1);
    if (target - begins_[file] <= near) return {file, 0};
    if (begins_[file + 1] - target <= near) return {file + 1, 0};
    const std::uint64_t offset = inside(files_[file], target - begins_[file], near);
    return offset >= files_[file].size() ? Cut{file + 1, 0} : Cut{file, offset};
  }

 private:
  /// The offset in `file` where about `target` of its cost lies before.
  static std::uint64_t inside(const FileCost& file, std::uint64_t target, std::uint64_t near) {
    std::uint64_t begin = 0, cost = 0;  // of the span
    std::size_t i = 0;
    for (; i < file.spans.size() && cost + file.spans[i].cost <= target; ++i) {
      cost += file.spans[i].cost;
      begin = file.spans[i].end;
    }
    if (i == file.spans.size()) return begin;
    const CostSpan& span = file.spans[i];
    const std::uint64_t before = target - cost, behind = cost + span.cost - target;
    if (std::min(before, behind) <= near) {
      const std::size_t next = before <= behind ? i : i + 1;  // the span that begins at the cut
      const std::uint64_t border = before <= behind ? begin : span.end;
      // The page of the border goes to the side on which a few bytes do not belong to a tile.
      const bool up = next == file.spans.size() || !file.spans[next].tiled;
      return up ? round_up(border, kSplitUnit) : border / kSplitUnit * kSplitUnit;
    }
    const std::uint64_t size = span.end - begin;
    auto offset = static_cast<std::uint64_t>(static_cast<Wide>(size) * before / span.cost);
    if (span.tiled && size > kTiledUnit) offset = offset / kTiledUnit * kTiledUnit;
    return (begin + offset) / kSplitUnit * kSplitUnit;
  }

  std::span<const FileCost> files_;
  unsigned ranges_;
  std::vector<std::uint64_t> begins_;  // the cost before each file, and of all
};

std::vector<std::vector<ExportStep>> split_ranges(std::span<const FileCost> files, unsigned parts) {
  std::vector<std::vector<ExportStep>> steps(parts);
  const Cutter cutter(files, parts);
  Cut at;
  for (unsigned part = 0; part < parts; ++part) {
    const Cut end = std::max(at, cutter.cut(part + 1));
    for (; at.file < end.file; at = {at.file + 1, 0}) {
      const std::uint64_t size = files[at.file].size();
      if (at.offset < size) steps[part].push_back({at.file, {at.offset, size}});
    }
    if (at.offset < end.offset) steps[part].push_back({at.file, {at.offset, end.offset}});
    at = end;
  }
  return steps;
}

std::vector<std::vector<ExportStep>> split_files(std::span<const FileCost> files, unsigned parts) {
  std::vector<std::size_t> order(files.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<std::uint64_t> costs;
  for (const FileCost& file : files) costs.push_back(file.cost());
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t file) { return costs[file]; });

  using Load = std::pair<std::uint64_t, unsigned>;  // cost so far, part
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (unsigned part = 0; part < parts; ++part) loads.emplace(0, part);
  std::vector<std::vector<ExportStep>> steps(parts);
  for (const std::size_t file : order) {
    if (files[file].size() == 0) continue;
    const auto [cost, part] = loads.top();
    loads.pop();
    loads.emplace(cost + costs[file], part);
    steps[part].push_back({file, {0, files[file].size()}});
  }
  for (auto& part : steps) std::ranges::sort(part, {}, &ExportStep::file);
  return steps;
}

}  // namespace

std::uint64_t FileCost::cost() const {
  return std::transform_reduce(spans.begin(), spans.end(), std::uint64_t{0}, std::plus<>(),
                               [](const CostSpan& span) { return span.cost; });
}

std::uint64_t cost_of(const Catalog& catalog, const TensorExpr& expr) {
  return span_of(catalog, expr).cost;
}

Result<std::vector<FileCost>> file_costs(const View& view) {
  const ViewFiles& files = view_files_of(view);
  std::vector<FileCost> costs(files.size());
  CKFS_TRY_VOID(run_parallel(files.size(), [&](std::size_t file) -> Result<void> {
    const FileLayout layout = files.lay_out(file);
    costs[file] = cost_of(*layout.definition->catalog, layout);  // perhaps that of a folder's own
    return {};
  }));
  return costs;
}

std::vector<std::vector<ExportStep>> split_steps(std::span<const FileCost> files, unsigned parts,
                                                 Split split) {
  return split == Split::Files ? split_files(files, parts) : split_ranges(files, parts);
}

}  // namespace ckfs
