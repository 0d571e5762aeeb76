// All combinations of divisors are compared by the rules: some thousands for the arrays of models.
// To construct the best one rule by rule would be faster, but divisors of one dimension decide what
// those of another are worth, and a list of rules that is compared is the documentation.
#include "container/chunking.h"

#include <algorithm>
#include <compare>
#include <numeric>

#include "base/error.h"
#include "base/rounding.h"

namespace ckfs {
namespace {

// Bounds the time for shapes that no model has.
constexpr std::size_t kMostCandidates = std::size_t{1} << 17;
constexpr std::int64_t kMostTried = std::int64_t{1} << 16;
constexpr std::uint64_t kStepsOfRank = 16;

/// All of them up to 2^32; adds what was tried to `steps`.
std::vector<std::int64_t> divisors(std::int64_t number, std::uint64_t& steps) {
  std::vector<std::int64_t> low;
  std::vector<std::int64_t> high;
  for (std::int64_t d = 1; d <= std::min(number / d, kMostTried); ++d) {
    ++steps;
    if (number % d != 0) continue;
    low.push_back(d);
    if (d != number / d) high.push_back(number / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

/// Candidates along each dimension, thinned out until their combinations can be compared.
std::vector<std::vector<std::int64_t>> candidates(std::span<const std::int64_t> share,
                                                  std::uint64_t& steps) {
  std::vector<std::vector<std::int64_t>> all;
  for (const std::int64_t extent : share) all.push_back(divisors(extent, steps));
  const auto combinations = [&] {
    std::size_t count = 1;
    for (const auto& some : all) {
      count = std::min(count * some.size(), kMostCandidates + 1);
    }
    return count;
  };
  while (combinations() > kMostCandidates) {
    auto& most = *std::ranges::max_element(all, {}, [](const auto& some) { return some.size(); });
    std::vector<std::int64_t> fewer;
    for (std::size_t i = 0; i + 1 < most.size(); i += 2) fewer.push_back(most[i]);
    if (most.size() > 2) fewer.push_back(most.back());
    most = std::move(fewer);
  }
  return all;
}

/// What the rules say of a chunk; the least is the best.
struct Rank {
  std::uint64_t misfit = 0;  // how many times too large or too small
  std::int64_t tensors = 0;
  bool cuts_granules = false;
  std::int64_t shortness = 0;      // the run's elements, negative
  std::int64_t numel = 0;          // negative
  std::vector<std::int64_t> slow;  // along cells, where they are far from each other

  auto operator<=>(const Rank&) const = default;
};

/// The most source tensors that a chunk meets along a dimension.
std::int64_t tensors_along(std::int64_t chunk, std::int64_t cell) {
  const std::int64_t latest = cell - std::gcd(chunk, cell);  // begin of a chunk within a cell
  return ceil_div(latest + chunk, cell);
}

class Ranking {
 public:
  Ranking(std::span<const std::int64_t> share, std::uint64_t width, const ArraySource& source,
          std::uint64_t most)
      : width_(width), source_(source), most_(most) {
    std::uint64_t bytes = width;
    for (const std::int64_t extent : share) bytes *= static_cast<std::uint64_t>(extent);
    least_ = std::min({bytes, kLeastChunkBytes, most});
  }

  Rank of(std::span<const std::int64_t> chunk) const {
    Rank rank;
    std::int64_t numel = 1;
    rank.tensors = 1;
    for (std::size_t d = 0; d < chunk.size(); ++d) {
      numel *= chunk[d];
      rank.tensors *= tensors_along(chunk[d], source_.cell[d]);
      rank.cuts_granules |= chunk[d] % source_.granule[d] != 0 && chunk[d] < source_.cell[d];
    }
    const std::uint64_t bytes = static_cast<std::uint64_t>(numel) * width_;
    rank.misfit = std::max(ceil_div(bytes, most_), ceil_div(least_, bytes));
    std::int64_t run = 1;
    for (std::size_t i = source_.order.size(); i-- > 0;) {
      const auto d = static_cast<std::size_t>(source_.order[i]);
      run *= std::min(chunk[d], source_.cell[d]);
      if (chunk[d] < source_.cell[d]) break;
    }
    rank.shortness = -run;
    rank.numel = -numel;
    for (const std::int64_t d : source_.cell_order) {
      rank.slow.push_back(chunk[static_cast<std::size_t>(d)]);
    }
    return rank;
  }

 private:
  const std::uint64_t width_;
  const ArraySource& source_;
  const std::uint64_t most_;
  std::uint64_t least_ = 0;
};

}  // namespace

ChosenChunk choose_chunk(std::span<const std::int64_t> shape, std::uint64_t width,
                         std::span<const std::int64_t> split, const ArraySource& source,
                         std::uint64_t most) {
  CKFS_CHECK(split.empty() || split.size() == shape.size());
  if (std::ranges::find(shape, 0) != shape.end()) {
    return {.shape = std::vector<std::int64_t>(shape.size(), 1)};
  }
  std::vector<std::int64_t> share(shape.begin(), shape.end());
  for (std::size_t d = 0; d < split.size(); ++d) {
    CKFS_CHECK(shape[d] % split[d] == 0);
    share[d] /= split[d];
  }
  const Ranking ranking(share, width, source, most);
  ChosenChunk best;
  const std::vector<std::vector<std::int64_t>> choices = candidates(share, best.steps);
  std::vector<std::size_t> at(share.size(), 0);
  std::vector<std::int64_t> chunk(share.size(), 1);
  Rank best_rank;
  bool found = false;
  while (true) {
    for (std::size_t d = 0; d < share.size(); ++d) chunk[d] = choices[d][at[d]];
    Rank rank = ranking.of(chunk);
    best.steps += kStepsOfRank;
    if (!found || rank < best_rank) {
      found = true;
      best.shape = chunk;
      best_rank = std::move(rank);
    }
    std::size_t d = share.size();
    while (d > 0 && at[d - 1] + 1 == choices[d - 1].size()) at[--d] = 0;
    if (d == 0) return best;
    ++at[d - 1];
  }
}

}  // namespace ckfs
