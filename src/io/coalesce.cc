// The batch is walked once in the order (file, offset), and an access grows as long as the next
// request is near, fits, and does not overlap what is there.
//
// The alternative, one buffer for the covering range and copies out of it, costs a copy of every
// byte and memory beside the budget; a vectored read scatters in the kernel, which copies anyhow.
#include "io/coalesce.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/units.h"

namespace ckfs {
namespace {

bool lies_before(const ReadRequest& a, const ReadRequest& b) {
  return std::tie(a.file, a.offset) < std::tie(b.file, b.offset);
}

/// Where a run [begin, end) that is longer than `limit` is cut: on a page of the file if possible,
/// so that no page is touched by two accesses.
std::uint64_t cut(std::uint64_t begin, std::uint64_t end, std::uint64_t limit) {
  if (end - begin <= limit) return end;
  const std::uint64_t last = begin + limit;
  const std::uint64_t page = last - last % kPage;
  return page > begin ? page : last;
}

class Builder {
 public:
  explicit Builder(const CoalesceOptions& options) : options_(options) {}

  void add(const ReadRequest& request) {
    if (request.out.empty()) return;
    const std::uint64_t end = request.offset + request.out.size();
    if (joins(request, end)) {
      PlannedAccess& access = plan_.accesses.back();
      const std::uint64_t gap = request.offset - (access.offset + access.size);
      if (gap > 0) append(sink(), gap);
      append(request.out.data(), request.out.size());
      return;
    }
    for (std::uint64_t begin = request.offset; begin < end;) {
      const std::uint64_t stop = cut(begin, end, options_.max_access);
      plan_.accesses.push_back({request.file, begin, 0, plan_.parts.size(), 0});
      append(request.out.data() + (begin - request.offset), stop - begin);
      begin = stop;
    }
  }

  AccessPlan finish() && { return std::move(plan_); }

 private:
  bool joins(const ReadRequest& request, std::uint64_t end) const {
    if (plan_.accesses.empty()) return false;
    const PlannedAccess& access = plan_.accesses.back();
    const std::uint64_t access_end = access.offset + access.size;
    return access.file == request.file && request.offset >= access_end &&
           request.offset - access_end <= options_.gap &&
           share_access(plan_.parts.back().iov_len, request.offset - access_end,
                        request.out.size()) &&
           end - access.offset <= options_.max_access &&
           access.part_count + (request.offset > access_end ? 2 : 1) <= options_.max_parts;
  }

  void append(std::byte* to, std::uint64_t size) {
    PlannedAccess& access = plan_.accesses.back();
    plan_.parts.push_back({to, size});
    access.size += size;
    ++access.part_count;
  }

  std::byte* sink() {
    if (!plan_.sink) plan_.sink = std::make_unique_for_overwrite<std::byte[]>(options_.gap);
    return plan_.sink.get();
  }

  const CoalesceOptions& options_;
  AccessPlan plan_;
};

}  // namespace

AccessPlan coalesce(std::span<const ReadRequest> batch, const CoalesceOptions& options) {
  Builder builder(options);
  if (std::is_sorted(batch.begin(), batch.end(), lies_before)) {
    for (const ReadRequest& request : batch) builder.add(request);
    return std::move(builder).finish();
  }
  std::vector<std::size_t> order(batch.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Stable, so that the plan is a function of the batch alone.
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return lies_before(batch[a], batch[b]); });
  for (std::size_t index : order) builder.add(batch[index]);
  return std::move(builder).finish();
}

}  // namespace ckfs
