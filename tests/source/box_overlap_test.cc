#include "source/box_overlap.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>
#include <vector>

namespace ckfs {
namespace {

struct Region {
  std::vector<std::int64_t> begin, count;
};

bool share_an_element(const Region& a, const Region& b) {
  for (std::size_t d = 0; d < a.begin.size(); ++d) {
    bool shared = false;
    for (std::int64_t i = 0; i < a.count[d]; ++i) {
      for (std::int64_t j = 0; j < b.count[d]; ++j) shared |= a.begin[d] + i == b.begin[d] + j;
    }
    if (!shared) return false;
  }
  return true;
}

OverlapSearch search(const std::vector<Region>& boxes, std::uint64_t budget = ~std::uint64_t{0}) {
  return find_overlap(
      boxes.size(), boxes.empty() ? 0 : boxes.front().begin.size(),
      [&](std::uint32_t i) { return BoxView{boxes[i].begin, boxes[i].count}; },
      [&](std::uint64_t steps) { return steps <= budget && (budget -= steps, true); });
}

RC_GTEST_PROP(FindOverlap, FindsAPairWhereOneIsAndNoneElsewhere, ()) {
  const auto rank = *rc::gen::inRange<std::size_t>(0, 4);
  const auto boxes = *rc::gen::container<std::vector<Region>>(rc::gen::exec([rank] {
    Region box;
    for (std::size_t d = 0; d < rank; ++d) {
      box.begin.push_back(*rc::gen::inRange(0, 12));
      box.count.push_back(*rc::gen::inRange(1, 5));
    }
    return box;
  }));
  bool any = false;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) any |= share_an_element(boxes[i], boxes[j]);
  }
  const auto [found, irregular] = search(boxes);
  RC_ASSERT(irregular == 0U);
  RC_ASSERT(found.has_value() == any);
  if (!found) return;
  RC_ASSERT(found->first < found->second);
  RC_ASSERT(share_an_element(boxes[found->first], boxes[found->second]));
}

TEST(FindOverlap, TakesAMillionSlicesOfSlicesApart) {
  std::vector<Region> boxes;
  for (std::int64_t i = 0; i < 1000; ++i) {
    // Each row of 1,000 is cut elsewhere: no grid.
    for (std::int64_t j = 0; j < 1000; ++j) boxes.push_back({{i, j * 8 + i % 7}, {1, 8}});
  }
  EXPECT_FALSE(search(boxes).found.has_value());
  boxes.push_back({{500, 4000}, {1, 1}});
  EXPECT_EQ(search(boxes).found->second, boxes.size() - 1);
}

/// Five boxes around each other: no plane goes between them.
std::vector<Region> pinwheel(std::int64_t at) {
  return {{{at, at}, {2, 1}},
          {{at, at + 1}, {1, 2}},
          {{at + 1, at + 2}, {2, 1}},
          {{at + 2, at}, {1, 2}},
          {{at + 1, at + 1}, {1, 1}}};
}

TEST(FindOverlap, ComparesWhatNoPlaneDivides) {
  EXPECT_FALSE(search(pinwheel(0)).found.has_value());
  auto boxes = pinwheel(0);
  boxes[4].count[1] = 2;
  EXPECT_EQ(search(boxes).found, (std::pair<std::uint32_t, std::uint32_t>{2, 4}));
}

TEST(FindOverlap, SaysWhatItDidNotCompare) {
  constexpr std::int64_t kSide = 100;
  std::vector<Region> boxes{{{0, 0}, {kSide + 1, 1}},
                            {{0, 1}, {1, kSide + 1}},
                            {{1, kSide + 1}, {kSide + 1, 1}},
                            {{kSide + 1, 0}, {1, kSide + 1}}};
  for (std::int64_t i = 1; i <= kSide; ++i) {
    for (std::int64_t j = 1; j <= kSide; ++j) boxes.push_back({{i, j}, {1, 1}});
  }
  EXPECT_EQ(search(boxes).irregular, boxes.size());
  EXPECT_FALSE(search(boxes).found.has_value());
}

TEST(FindOverlap, GivesUpWhereTheBudgetEnds) {
  auto boxes = pinwheel(0);
  boxes[4].count[1] = 2;
  EXPECT_FALSE(search(boxes, 10).found.has_value());
}

}  // namespace
}  // namespace ckfs
