// Rules at the limit of a million tensors.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/model_catalog.h"
#include "view/recipes/recipe.h"

namespace ckfs {
namespace {

using testing::HasSubstr;

TEST(ManyTensors, HaveLimits) {
  ModelCatalog model;
  const auto parts = static_cast<std::int64_t>(kMaxParts);
  const std::int64_t quarter = kMaxTensors / 4;  // as many as a dimension is split into
  model.shard("a.safetensors", {{"parts", DType::U8, {parts + 1, 1}},
                                {"t.0", DType::U8, {quarter, 1}},
                                {"t.1", DType::U8, {quarter, 1}},
                                {"t.2", DType::U8, {quarter, 1}},
                                {"t.3", DType::U8, {quarter, 1}}});
  const auto catalog = model.build();
  const auto fault_of = [&](std::string_view take) {
    const auto recipes = add_recipe(Recipes(),
                                    fmt::format(R"({{"view": "v", "rules": [{{"take": "{}",
                                        "do": [{{"unstack": "i"}}], "give": "{{n}}.{{i}}"}}]}})",
                                                take),
                                    "f");
    TensorList list;
    for (const TensorId id : catalog->shards()[0].tensors) {
      list.tensors.push_back(
          {.name = catalog->tensor(id).name, .expr = TensorExpr::stored(*catalog, id)});
    }
    const auto made =
        apply_rules(recipes->views[0].rules, *config_numbers(*catalog), std::move(list));
    return made ? "" : made.error().message();
  };
  EXPECT_THAT(fault_of("{n:parts}"), HasSubstr("more than 1048576 tensors in a group"));
  // "parts" stays beside them.
  EXPECT_THAT(fault_of("t.{n}"), HasSubstr("\"t.3\": more than 1048576 tensors"));
}

TEST(ManyTensors, DoNotCountWhereTheyAreTaken) {
  ModelCatalog model;
  model.shard("a.safetensors", {{"t", DType::U8, {1}}});
  const auto catalog = model.build();
  TensorList list;
  for (std::size_t i = 0; i <= kMaxTensors / 2; ++i) {
    list.tensors.push_back({.name = list.names.emplace_back(std::to_string(i)),
                            .expr = TensorExpr::stored(*catalog, 0)});
  }
  const auto recipes =
      add_recipe(Recipes(), R"({"view": "v", "rules": [{"take": "{i}", "give": "t.{i}"}]})", "f");
  const auto made = apply_rules(recipes->views[0].rules, {}, std::move(list));
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ(made->tensors.size(), kMaxTensors / 2 + 1);
}

}  // namespace
}  // namespace ckfs
