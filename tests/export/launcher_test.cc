#include "export/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>

namespace ckfs {
namespace {

using testing::HasSubstr;

using Environment = std::map<std::string, std::string>;

Result<std::optional<FleetPlace>> place(const Environment& variables,
                                        std::optional<unsigned> rank = {},
                                        std::optional<unsigned> world = {}) {
  return find_place(rank, world, [&](const char* name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional(at->second);
  });
}

struct Row {
  Environment variables;
  unsigned rank, world;
};

TEST(Launcher, EachIsKnownByItsVariables) {
  const Row rows[] = {
      {{{"SLURM_ARRAY_TASK_ID", "3"}, {"SLURM_ARRAY_TASK_COUNT", "8"}}, 3, 8},
      {{{"SLURM_ARRAY_TASK_ID", "14"},
        {"SLURM_ARRAY_TASK_COUNT", "4"},
        {"SLURM_ARRAY_TASK_MIN", "10"},
        {"SLURM_ARRAY_TASK_STEP", "2"},
        // A batch script's own, though the task is one process.
        {"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "1"},
        {"SLURM_STEP_NUM_TASKS", "1"}},
       2,
       4},
      {{{"SLURM_PROCID", "5"}, {"SLURM_STEP_NUM_TASKS", "6"}, {"SLURM_NTASKS", "6"}}, 5, 6},
      {{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "4"}}, 1, 4},
      {{{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, 0, 2},
      {{{"RANK", "7"}, {"WORLD_SIZE", "8"}}, 7, 8},
      // Two that agree.
      {{{"RANK", "7"}, {"WORLD_SIZE", "8"}, {"PMI_RANK", "7"}, {"PMI_SIZE", "8"}}, 7, 8},
  };
  for (const Row& row : rows) {
    const auto found = place(row.variables);
    ASSERT_TRUE(found.has_value()) << found.error().message();
    ASSERT_TRUE(found->has_value());
    EXPECT_EQ((*found)->rank, row.rank);
    EXPECT_EQ((*found)->world, row.world);
  }
}

TEST(Launcher, WithoutOneThereIsOneProcess) {
  for (const Environment& variables :
       {Environment{}, Environment{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}},
        Environment{{"RANK", "1"}}, Environment{{"WORLD_SIZE", "8"}}, Environment{{"RANK", ""}}}) {
    const auto found = place(variables);
    ASSERT_TRUE(found.has_value()) << found.error().message();
    EXPECT_FALSE(found->has_value());
  }
}

TEST(Launcher, WhatTheUserSaysComesFirst) {
  const Environment torchrun{{"RANK", "7"}, {"WORLD_SIZE", "8"}};
  const auto found = place(torchrun, 1, 2);
  ASSERT_TRUE(found.has_value() && found->has_value());
  EXPECT_EQ(**found, (FleetPlace{1, 2, "--rank"}));

  const auto pod = place({{"JOB_COMPLETION_INDEX", "4"}}, {}, 5);
  ASSERT_TRUE(pod.has_value() && pod->has_value());
  EXPECT_EQ((*pod)->rank, 4U);
  EXPECT_EQ((*pod)->world, 5U);

  // Beside it, a launcher of one process.
  for (const Environment& one : {Environment{{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}},
                                 Environment{{"RANK", "0"}, {"WORLD_SIZE", "1"}}}) {
    Environment variables{{"SLURM_ARRAY_TASK_ID", "5"}, {"SLURM_ARRAY_TASK_COUNT", "8"}};
    variables.insert(one.begin(), one.end());
    const auto task = place(variables, {}, 8);
    ASSERT_TRUE(task.has_value() && task->has_value());
    EXPECT_EQ((*task)->rank, 5U);
    EXPECT_EQ((*task)->world, 8U);
  }
}

TEST(Launcher, ContradictionsAndNonsenseAreErrors) {
  const auto message = [](const auto& found) {
    return found ? std::string() : found.error().message();
  };
  EXPECT_THAT(
      message(place({{"RANK", "1"}, {"WORLD_SIZE", "8"}, {"PMI_RANK", "2"}, {"PMI_SIZE", "8"}})),
      testing::AllOf(HasSubstr("rank 2 of 8"), HasSubstr("rank 1 of 8")));
  EXPECT_THAT(message(place({{"RANK", "8"}, {"WORLD_SIZE", "8"}})), HasSubstr("rank 8 of 8"));
  EXPECT_THAT(message(place({{"RANK", "x"}, {"WORLD_SIZE", "8"}})), HasSubstr("\"x\""));
  EXPECT_THAT(message(place({{"RANK", "0"}, {"WORLD_SIZE", "0"}})), HasSubstr("0 processes"));
  EXPECT_THAT(message(place({{"JOB_COMPLETION_INDEX", "4"}})), HasSubstr("--world N"));
  EXPECT_THAT(message(place({{"JOB_COMPLETION_INDEX", "4"}}, {}, 4)), HasSubstr("rank 4 of 4"));
  EXPECT_THAT(message(place({}, 1)), HasSubstr("--world N"));
  EXPECT_THAT(message(place({{"RANK", "1"}, {"WORLD_SIZE", "8"}}, 1)), HasSubstr("--world N"));
  EXPECT_THAT(message(place({}, {}, 4)), HasSubstr("--rank R"));
  EXPECT_THAT(message(place({}, 4, 4)), HasSubstr("rank 4 of 4"));
  EXPECT_THAT(message(place({}, 0, 70000)), HasSubstr("70000 processes"));
  EXPECT_THAT(message(place({{"SLURM_ARRAY_TASK_ID", "3"},
                             {"SLURM_ARRAY_TASK_COUNT", "8"},
                             {"SLURM_ARRAY_TASK_MIN", "5"}})),
              HasSubstr("SLURM_ARRAY_TASK_MIN"));
}

TEST(Launcher, IsNamedForMessages) {
  const auto named = [](Launched launched, const Environment& variables) {
    return find_launcher(launched, [&](const char* name) -> std::optional<std::string> {
      const auto at = variables.find(name);
      return at == variables.end() ? std::nullopt : std::optional(at->second);
    });
  };
  const Environment several{{"RANK", "0"}, {"WORLD_SIZE", "8"}};
  EXPECT_EQ(named(Launched::AsOneOfSeveral, several), "torchrun (RANK, WORLD_SIZE)");
  EXPECT_EQ(named(Launched::AtAll, several), "torchrun (RANK, WORLD_SIZE)");
  const Environment one{{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  EXPECT_EQ(named(Launched::AsOneOfSeveral, one), std::nullopt);
  EXPECT_EQ(named(Launched::AtAll, one), "torchrun (RANK, WORLD_SIZE)");
  EXPECT_EQ(named(Launched::AsOneOfSeveral, {{"JOB_COMPLETION_INDEX", "0"}}),
            "Kubernetes' Indexed Job (JOB_COMPLETION_INDEX)");
  for (const Environment& none : {Environment{}, Environment{{"RANK", "1"}},
                                  Environment{{"RANK", "x"}, {"WORLD_SIZE", "8"}}}) {
    EXPECT_EQ(named(Launched::AtAll, none), std::nullopt);
  }
}

}  // namespace
}  // namespace ckfs
