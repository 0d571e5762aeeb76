#include "base/growing_array.h"

#include <cstdint>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <new>
#include <utility>
#include <vector>

namespace ckfs {
namespace {

using testing::ElementsAre;

TEST(GrowingArray, HoldsWhatWasPutInHoweverItGrew) {
  GrowingArray<std::uint32_t> array;
  std::vector<std::uint32_t> expected;
  for (std::uint32_t i = 0; i < 100'000; ++i) {
    switch (i % 7) {
      case 0:
        array.resize(array.size() + i % 5);
        expected.resize(expected.size() + i % 5);
        break;
      case 1:
        array.append(std::vector{i, i + 1, i + 2});
        expected.insert(expected.end(), {i, i + 1, i + 2});
        break;
      default:
        array.push_back(i);
        expected.push_back(i);
    }
  }
  EXPECT_TRUE(std::ranges::equal(array, expected));
  array.resize(5);
  array.shrink_to_fit();
  EXPECT_EQ(array.capacity(), 5U);
  array.resize(7);
  EXPECT_THAT(array,
              ElementsAre(expected[0], expected[1], expected[2], expected[3], expected[4], 0, 0));
}

TEST(GrowingArray, MovesAndLeavesNothingBehind) {
  GrowingArray<int> a;
  a.push_back(1);
  GrowingArray<int> b = std::move(a);
  EXPECT_TRUE(a.empty());  // NOLINT(bugprone-use-after-move)
  a.push_back(2);
  EXPECT_THAT(a, ElementsAre(2));
  EXPECT_THAT(b, ElementsAre(1));
  a = std::move(b);
  EXPECT_THAT(a, ElementsAre(1));
}

TEST(GrowingArray, StaysWhatItWasWhereThereIsNoMemory) {
  GrowingArray<std::uint64_t> array;
  array.push_back(7);
  EXPECT_THROW(array.resize(SIZE_MAX / 8), std::bad_alloc);
  EXPECT_THAT(array, ElementsAre(7));
}

TEST(GrowingArrayDeathTest, AbortsBeyondTheEnd) {
  GrowingArray<int> array;
  array.push_back(1);
  EXPECT_DEATH(array[1] = 0, "");
  EXPECT_DEATH((void)array.subspan(1, 1), "");
}

}  // namespace
}  // namespace ckfs
