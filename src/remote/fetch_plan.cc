// Ranges are walked once in the order (object, offset). Those that lie near each other make a run,
// which is then cut into requests of the greatest length: so each byte is in one request.
#include "remote/fetch_plan.h"

#include <algorithm>
#include <tuple>

namespace ckfs {
namespace {

/// Requests end there where they may end anywhere: servers and disks like it.
constexpr std::uint64_t kRound = 4096;

std::uint64_t end_of_wanted(const WantedRange& wanted) {
  return wanted.offset + wanted.out.size();
}

/// All units that have bytes of it.
ByteRange in_units(const WantedRange& wanted) {
  const std::uint64_t end = end_of_wanted(wanted);
  const std::uint64_t above = (wanted.unit - end % wanted.unit) % wanted.unit;
  return {wanted.offset / wanted.unit * wanted.unit,
          end + std::min(above, wanted.object_size - end)};
}

/// Where a request for [begin, end) ends.
std::uint64_t cut_fetch(ByteRange range, std::uint64_t unit, std::uint64_t longest) {
  if (range.size() <= longest) return range.end;
  const std::uint64_t last = range.begin + longest;
  const std::uint64_t round = last - last % std::max(unit, kRound);
  return round > range.begin ? round : last;
}

}  // namespace

FetchPlan plan_fetches(std::vector<WantedRange> wanted, const FetchPlanOptions& options) {
  std::erase_if(wanted, [](const WantedRange& each) { return each.out.empty(); });
  std::ranges::stable_sort(wanted, [](const WantedRange& a, const WantedRange& b) {
    return std::tie(a.object, a.offset) < std::tie(b.object, b.offset);
  });
  FetchPlan plan;
  for (std::size_t first = 0; first < wanted.size();) {
    ByteRange run = in_units(wanted[first]);
    std::size_t after = first + 1;
    for (; after < wanted.size() && wanted[after].object == wanted[first].object; ++after) {
      const ByteRange next = in_units(wanted[after]);
      if (next.begin > run.end && next.begin - run.end > options.gap) break;
      run.end = std::max(run.end, next.end);
    }
    std::size_t from = first;  // those before it end before the request
    for (std::uint64_t at = run.begin; at < run.end;) {
      while (from < after && end_of_wanted(wanted[from]) <= at) ++from;
      if (from == after) break;  // the rest is the last unit's
      // Bytes between two ranges are not fetched where a request begins there anyway.
      at = std::max(at, in_units(wanted[from]).begin);
      const std::uint64_t stop = cut_fetch({at, run.end}, wanted[first].unit, options.longest);
      PlannedFetch& fetch = plan.fetches.emplace_back();
      fetch = {wanted[first].object, {at, stop}, plan.parts.size(), 0};
      for (std::size_t i = from; i < after && wanted[i].offset < stop; ++i) {
        const std::uint64_t begin = std::max(at, wanted[i].offset);
        const std::uint64_t end = std::min(stop, end_of_wanted(wanted[i]));
        if (begin >= end) continue;
        plan.parts.push_back({begin, wanted[i].out.subspan(begin - wanted[i].offset, end - begin)});
        ++fetch.part_count;
      }
      at = stop;
    }
    first = after;
  }
  return plan;
}

}  // namespace ckfs
