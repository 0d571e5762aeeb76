// split_bench SRC VIEW PARTS: how `ckfs export` cuts a view for PARTS processes. Prints the largest
// cost of a part against the mean; source bytes that two neighbours both read to write the MiB on
// either side of a cut, but for tensors that are computed in tiles; how many cuts lie inside of
// such a tensor; and the seconds that opening and cutting took.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fmt/format.h>

#include "api/checkpoint_impl.h"
#include "api/metrics.h"
#include "engine/read_plan.h"
#include "export/split.h"

namespace {

using namespace ckfs;

constexpr std::uint64_t kBeside = std::uint64_t{1} << 20;

/// Bytes that are in both lists. Each list's ranges do not overlap.
std::uint64_t common(const std::vector<FileRange>& a, const std::vector<FileRange>& b) {
  std::uint64_t bytes = 0;
  for (const FileRange& x : a) {
    for (const FileRange& y : b) {
      if (x.file != y.file) continue;
      bytes +=
          ByteRange{x.offset, x.offset + x.size}.intersect({y.offset, y.offset + y.size}).size();
    }
  }
  return bytes;
}

int run(const char* source, const char* spelling, unsigned parts) {
  const auto begin = std::chrono::steady_clock::now();
  const auto checkpoint = Checkpoint::open(source);
  if (!checkpoint) return std::fprintf(stderr, "%s\n", checkpoint.error().message().c_str()), 1;
  const auto view = checkpoint->view(spelling);
  if (!view) return std::fprintf(stderr, "%s\n", view.error().message().c_str()), 1;
  const auto costs = file_costs(*view);
  if (!costs) return std::fprintf(stderr, "%s\n", costs.error().message().c_str()), 1;
  const auto steps = split_steps(*costs, parts, Split::Ranges);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;

  double largest = 0, total = 0;
  std::uint64_t shared = 0, tiled = 0;
  for (const auto& part : steps) {
    double cost = 0;
    for (const ExportStep& step : part) {
      std::uint64_t at = 0;
      for (const CostSpan& span : (*costs)[step.file].spans) {
        const ByteRange all{at, span.end};
        const ByteRange inside = step.range.intersect(all);
        cost += static_cast<double>(span.cost) * static_cast<double>(inside.size()) /
                static_cast<double>(all.size());
        at = span.end;
      }
      const std::uint64_t cut = step.range.begin;
      if (cut == 0) continue;
      const auto layout = impl_of(*view).files->layout(step.file);
      if (kind_of_read(*layout, cut) == ReadKind::Gather ||
          kind_of_read(*layout, cut - 1) == ReadKind::Gather) {
        if (layout->segments[layout->find(cut)].begin + kSplitUnit < cut) ++tiled;
        continue;
      }
      shared += common(ranges_of(plan_read(*layout, {cut - std::min(cut, kBeside), cut})),
                       ranges_of(plan_read(*layout, {cut, std::min(cut + kBeside, layout->size)})));
    }
    largest = std::max(largest, cost);
    total += cost;
  }
  std::printf("%.6f %llu %llu %.3f\n", largest * parts / total,
              static_cast<unsigned long long>(shared), static_cast<unsigned long long>(tiled),
              seconds.count());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "split_bench SRC VIEW PARTS\n"), 2;
  return run(argv[1], argv[2], static_cast<unsigned>(std::atoi(argv[3])));
}
