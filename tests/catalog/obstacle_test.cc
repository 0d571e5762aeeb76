#include "catalog/obstacle.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace ckfs {
namespace {

TEST(ObstacleList, HasNoneAtFirst) {
  EXPECT_TRUE(ObstacleList().list().empty());
  EXPECT_EQ(count_obstacles({}), 0U);
}

TEST(ObstacleList, ListsTheFirstTensorsOfAReasonAndCountsTheOthers) {
  ObstacleList obstacles;
  for (int i = 0; i < 69'000; ++i) obstacles.add(fmt::format("t{:05}", 69'000 - i), "packed");
  obstacles.add("t68997", "odd");
  const std::vector<Obstacle> listed = obstacles.list();
  ASSERT_EQ(listed.size(), ObstacleList::kTensors + 1);
  EXPECT_EQ(listed[0].tensor, "t68996");
  EXPECT_EQ(listed[1].tensor, "t68997");
  EXPECT_EQ(listed[1].reason, "odd");
  EXPECT_EQ(listed[1].more, 0U);
  EXPECT_EQ(listed.back().tensor, "t69000");
  EXPECT_EQ(listed.back().more, 69'000U - ObstacleList::kTensors);
  EXPECT_EQ(count_obstacles(listed), 69'001U);
}

TEST(ObstacleList, IsBoundedAlsoWhereEveryTensorHasAReasonOfItsOwn) {
  ObstacleList obstacles;
  for (int i = 0; i < 10'000; ++i) {
    obstacles.add(fmt::format("t{:04}", i), fmt::format("reason {}", i));
  }
  const std::vector<Obstacle> listed = obstacles.list();
  EXPECT_EQ(listed.size(), ObstacleList::kReasons - 1 + ObstacleList::kTensors);
  EXPECT_EQ(listed[50].reason, "reason 50");
  EXPECT_EQ(count_obstacles(listed), 10'000U);
}

}  // namespace
}  // namespace ckfs
