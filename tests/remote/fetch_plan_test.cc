// Which requests bring wanted ranges, and that each byte of them arrives.
#include "remote/fetch_plan.h"

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <random>

namespace ckfs {
namespace {

constexpr std::uint64_t kUnit = 64 << 10;
constexpr std::uint64_t kSize = std::uint64_t{1} << 30;
using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

/// Wanted ranges with places of their own.
struct Wants {
  std::vector<std::vector<std::byte>> places;
  std::vector<WantedRange> wanted;

  void add(std::uint64_t offset, std::uint64_t size, std::uint64_t unit = 1,
           std::uint64_t object = 0, std::uint64_t object_size = kSize) {
    places.emplace_back(size);
    wanted.push_back({.object = object,
                      .object_size = object_size,
                      .offset = offset,
                      .out = places.back(),
                      .unit = unit});
  }
};

Ranges ranges_of(const FetchPlan& plan) {
  Ranges ranges;
  for (const PlannedFetch& fetch : plan.fetches) {
    ranges.emplace_back(fetch.range.begin, fetch.range.end);
  }
  return ranges;
}

TEST(PlanFetches, JoinsWhatIsNearAndNoMore) {
  Wants wants;
  wants.add(500'000, 1000);
  wants.add(0, 100);
  wants.add(200, 100);
  wants.add(0, 50, 1, 1);
  const FetchPlan plan = plan_fetches(wants.wanted, {.gap = 100, .longest = 1 << 20});
  EXPECT_EQ(ranges_of(plan), (Ranges{{0, 300}, {500'000, 501'000}, {0, 50}}));
  EXPECT_EQ(plan.fetches.back().object, 1);
}

TEST(PlanFetches, FetchesWholeUnitsUpToTheEndOfTheObject) {
  Wants wants;
  wants.add(kUnit + 1, 10, kUnit);
  wants.add(10 * kUnit + 5, 7, kUnit, 0, 10 * kUnit + 20);
  const FetchPlan plan = plan_fetches(wants.wanted, {.gap = 0, .longest = 1 << 20});
  EXPECT_EQ(ranges_of(plan), (Ranges{{kUnit, 2 * kUnit}, {10 * kUnit, 10 * kUnit + 20}}));
}

TEST(PlanFetches, CutsWhereUnitsEndSoThatNoneIsFetchedTwice) {
  Wants wants;
  wants.add(kUnit / 2, 4 * kUnit, kUnit);
  const FetchPlan plan = plan_fetches(wants.wanted, {.gap = 0, .longest = 2 * kUnit + 1000});
  EXPECT_EQ(ranges_of(plan),
            (Ranges{{0, 2 * kUnit}, {2 * kUnit, 4 * kUnit}, {4 * kUnit, 5 * kUnit}}));
}

TEST(PlanFetches, LeavesOutWhatLiesBetweenARequestAndTheNext) {
  Wants wants;
  wants.add(0, 8192);
  wants.add(8192 + 3000, 100);
  const FetchPlan plan = plan_fetches(wants.wanted, {.gap = 4096, .longest = 8192});
  EXPECT_EQ(ranges_of(plan), (Ranges{{0, 8192}, {11'192, 11'292}}));
}

TEST(PlanFetches, NeedsNoRequestForNothing) {
  Wants wants;
  wants.add(7, 0);
  EXPECT_TRUE(plan_fetches(wants.wanted, {.gap = 1, .longest = 10}).fetches.empty());
}

std::byte byte_at(std::uint64_t object, std::uint64_t offset) {
  return static_cast<std::byte>((object * 31 + offset * 7 + (offset >> 8)) & 0xFF);
}

TEST(PlanFetches, BringsEveryByteAndFetchesNoneTwice) {
  std::mt19937_64 random(43);
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  for (int round = 0; round < 200; ++round) {
    Wants wants;
    std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> objects;  // size, unit
    for (std::uint64_t i = 0; i < 3; ++i) {
      objects[i] = {1 + below(400'000), below(2) == 0 ? 1 : 4096};
    }
    for (std::uint64_t i = below(30); i > 0; --i) {
      const auto& [number, object] = *std::next(objects.begin(), static_cast<long>(below(3)));
      const std::uint64_t begin = below(object.first);
      const std::uint64_t size =
          below(below(4) == 0 ? object.first - begin + 1
                              : std::min<std::uint64_t>(5000, object.first - begin + 1));
      wants.add(begin, size, object.second, number, object.first);
    }
    const FetchPlanOptions options{.gap = below(10'000), .longest = 8192 + below(100'000)};
    const FetchPlan plan = plan_fetches(wants.wanted, options);
    std::uint64_t object = 0, end = 0;
    for (const PlannedFetch& fetch : plan.fetches) {
      const auto [size, unit] = objects.at(fetch.object);
      ASSERT_LE(fetch.range.size(), options.longest);
      ASSERT_LE(fetch.range.end, size);
      ASSERT_EQ(fetch.range.begin % unit, 0);
      ASSERT_TRUE(fetch.range.end % unit == 0 || fetch.range.end == size);
      ASSERT_GT(fetch.part_count, 0);
      if (fetch.object == object) {
        ASSERT_GE(fetch.range.begin, end);
      }
      object = fetch.object;
      end = fetch.range.end;
      for (const FetchPart& part : plan.parts_of(fetch)) {
        ASSERT_GE(part.offset, fetch.range.begin);
        ASSERT_LE(part.offset + part.out.size(), fetch.range.end);
        for (std::size_t i = 0; i < part.out.size(); ++i) {
          part.out[i] = byte_at(fetch.object, part.offset + i);
        }
      }
    }
    for (const WantedRange& each : wants.wanted) {
      for (std::size_t i = 0; i < each.out.size(); ++i) {
        ASSERT_EQ(each.out[i], byte_at(each.object, each.offset + i));
      }
    }
  }
}

}  // namespace
}  // namespace ckfs
