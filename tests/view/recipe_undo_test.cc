// Rules the other way round: names, numbers, shapes; that what comes back is what was there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/model_catalog.h"
#include "view/recipes/recipe.h"

namespace ckfs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Tensors of a catalog, the rules of a recipe, and the numbers of a config.json.
struct Way {
  std::vector<TensorSpec> tensors;
  std::string rules;
  std::string config = "{}";  // empty: there is none

  std::shared_ptr<const Catalog> catalog = {};

  Result<RuleList> parsed() const {
    CKFS_TRY(const Recipes recipes,
             add_recipe({}, fmt::format(R"j({{"view": "v", "rules": [{}]}})j", rules), "f"));
    return recipes.views.front().rules;
  }
  ConfigNumbers numbers() const {
    return config.empty() ? ConfigNumbers() : ConfigNumbers::parse(config, "config.json").value();
  }
  TensorList stored() {
    ModelCatalog model;
    model.state(tensors);
    catalog = model.build();
    TensorList list;
    for (const TensorId id : catalog->shards().front().tensors) {
      list.tensors.push_back(
          {.name = catalog->tensor(id).name, .expr = TensorExpr::stored(*catalog, id)});
    }
    return list;
  }
  Result<Undone> undone() {
    TensorList list = stored();
    CKFS_TRY(const RuleList rules_read, parsed());
    return undo_rules(rules_read, numbers(), std::move(list));
  }
  /// There and back.
  Result<Undone> both() {
    TensorList list = stored();
    CKFS_TRY(const RuleList rules_read, parsed());
    CKFS_TRY(list, apply_rules(rules_read, numbers(), std::move(list)));
    return undo_rules(rules_read, numbers(), std::move(list));
  }
};

std::vector<std::string> names(const Result<Undone>& undone) {
  if (!undone) return {undone.error().message()};
  std::vector<std::string> found;
  for (const ModelTensor& tensor : undone->list.tensors) found.emplace_back(tensor.name);
  std::ranges::sort(found);
  return found;
}

std::string error(const Result<Undone>& undone) {
  return undone ? "" : undone.error().message();
}

/// Every stored tensor is there again, as it is stored.
void expect_same(Way way) {
  const Result<Undone> back = way.both();
  ASSERT_TRUE(back) << back.error().message();
  ASSERT_EQ(back->list.tensors.size(), way.tensors.size());
  for (const ModelTensor& tensor : back->list.tensors) {
    const auto id = way.catalog->find(tensor.name);
    ASSERT_TRUE(id) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(tensor.expr.shape(), way.catalog->tensor(*id).shape))
        << tensor.name;
    EXPECT_EQ(tensor.expr.boxes(), TensorExpr::stored(*way.catalog, *id).boxes()) << tensor.name;
  }
}

TEST(Undo, GivesBackLayouts) {
  expect_same({{{"q", DType::F32, {6, 4}}, {"o", DType::F32, {4, 6}}, {"b", DType::F32, {6}}},
               R"j({"take": "q", "do": [{"shape": [6, "$h"]}, {"transpose": [1, 0]},
                                       {"reshape": ["dim(0)", "$n", -1]}], "give": "query"},
                  {"take": "o", "do": [{"shape": ["$h", 6]}, {"transpose": [1, 0]},
                                       {"reshape": ["$n", -1, "dim(1)"]}], "give": "out"},
                  {"take": "b", "do": [{"shape": [6]}, {"reshape": ["$n", -1]}], "give": "bias"},
                  {"take": "query", "do": [{"reshape": ["dim(0)", "dim(1)", "dim(2)", 1]},
                                           {"transpose": [1, 0, 2, 3]}, {"transpose": [1, 0, 2, 3]},
                                           {"reshape": ["dim(0)", "dim(1)", "dim(2)"]}],
                   "give": "query"})j",
               R"j({"n": 2, "h": 4})j"});
  expect_same({{{"gate_up", DType::BF16, {3, 8}}},
               R"j({"take": "gate_up", "do": [{"shape": ["$e", "2 * $i"]}, {"deinterleave": 1}],
                   "give": ["gate", "up"]},
                  {"take": ["gate", "up"], "do": [{"shape": ["$e", "$i"]}, {"concat": 1}], "give": "joined"},
                  {"take": "joined", "do": [{"split": 1}], "give": ["a", "b"]})j",
               R"j({"e": 3, "i": 4})j"});
}

TEST(Undo, CountsTheTensorsThatWereInterleavedWithoutAShape) {
  expect_same({{{"gate", DType::BF16, {3, 4}}, {"up", DType::BF16, {3, 4}}},
               R"j({"take": ["gate", "up"], "do": [{"interleave": 1}], "give": "gate_up"},
                  {"take": "gate_up", "do": [{"split": 1, "parts": 4}, {"interleave": 1}],
                   "give": "turned"},
                  {"take": "turned", "do": [{"deinterleave": 0, "parts": 3}, {"interleave": 1}],
                   "give": "in_one"},
                  {"take": "in_one", "do": [{"split": 1, "sizes": [6, 6, 12]}],
                   "give": ["a", "b", "c"]})j"});
  expect_same({{{"a", DType::F32, {2, 4}}, {"b", DType::F32, {2, 4}}},
               R"j({"take": ["a", "b"], "do": [{"interleave": 0}, {"shape": [4, 4]},
                                               {"reshape": [2, 2, "dim(1)"]},
                                               {"split": 1, "parts": "dim(0)"}, {"interleave": 1}],
                   "give": "c"})j"});
}

TEST(Undo, PartsOfSeveralTensorsHaveNoWayBack) {
  for (const std::string kind : {"split", "deinterleave"}) {
    for (const std::string parts : {"2", R"j("dim(0)")j"}) {
      Way way{{{"a", DType::F32, {2}},
               {"b", DType::F32, {2}},
               {"c", DType::F32, {2}},
               {"d", DType::F32, {2}}},
              R"j({"take": "p", "do": [{"split": 0, "parts": )j" + parts + R"j(}, {")j" + kind +
                  R"j(": 0}], "give": ["a", "b", "c", "d"]})j"};
      EXPECT_THAT(error(way.undone()), HasSubstr("the operation in line 1 has no way back"));
    }
  }
}

TEST(Undo, GivesBackNamesAndStacks) {
  std::vector<TensorSpec> layers;
  for (int i = 0; i < 7; ++i) {
    for (const char* part : {"gate", "up", "norm"}) {
      layers.push_back({fmt::format("model.layers.{}.{}.w", i, part), DType::F32, {2, 3}});
    }
  }
  layers.push_back({"other", DType::I32, {1}});
  expect_same({layers,
               R"j({"take": "model.layers.{i}.{m:gate|up}.w", "give": "l.{i}.{m}"},
                  {"take": "l.{i}.gate", "give": "l.{i}.wi_0"},
                  {"take": "l.{i}.{x:**}", "where": "i < $n // 3 * 3",
                   "let": {"block": "i % 3", "turn": "i // 3"},
                   "do": [{"promote": true}, {"stack": "turn", "dim": 1, "count": "$n // 3"}],
                   "give": "blocks.{block}.{x}"},
                  {"take": "l.{i}.{x:**}", "give": "rest.{i - $n // 3 * 3}.{x}"},
                  {"take": "model.layers.{i}.norm.w", "where": "i % 2 = 0",
                   "give": "even.{i // 2}"},
                  {"take": "model.layers.{i}.norm.w", "where": "i % 2 = 1", "give": "odd.{i // 2}"},
                  {"take": "even.{i}", "do": [{"stack": "i", "dim": 0}], "give": "evens"})j",
               R"j({"n": 7})j"});
}

TEST(Undo, DoesWhatARuleSaysOfTheWayBack) {
  Way way{{{"q", DType::F32, {2}}, {"a.x", DType::F32, {2}}, {"b", DType::F32, {2}}},
          R"j({"take": "p", "do": [{"multiply": 2}, {"flush_subnormals": true}],
              "back": [{"multiply": 3}], "give": "q"},
             {"take": "model.{x:**}", "give": "a.{x}", "back": false, "optional": true},
             {"take": "text.{x:**}", "give": "a.{x}", "back": {"when": "$kind = 'text'"},
              "optional": true},
             {"take": "c", "do": [{"canonical_nan": true}], "back": {"do": []}, "give": "b"},
             {"drop": "never"}, {"only": ["q", "a.{x:*}", "b"]})j",
          R"j({"kind": "text"})j"};
  EXPECT_THAT(names(way.undone()), ElementsAre("c", "p", "text.x"));
  const Result<Undone> back = way.undone();
  for (const ModelTensor& tensor : back->list.tensors) {
    const auto whole = tensor.expr.whole();
    ASSERT_TRUE(whole) << tensor.name;
    EXPECT_EQ(whole->program != nullptr, tensor.name == "p");
    if (whole->program) {
      EXPECT_EQ(*whole->program, (Program{{Step::Kind::Multiply, DType::F32, 3}}));
    }
  }
  way.config = R"j({"kind": "other"})j";
  EXPECT_THAT(names(way.undone()), ElementsAre("a.x", "c", "p"));
  way.rules = R"j({"take": "p", "back": {"what": 1}, "give": "q"})j";
  EXPECT_THAT(error(way.undone()), HasSubstr("no member \"what\" belongs here (only when, do)"));
  way.rules = R"j({"take": "p.{e}", "do": [{"stack": "e"}], "back": [{"unstack": "x"}],
                  "give": "q"})j";
  EXPECT_THAT(error(way.undone()), HasSubstr("is not a variable of this rule"));
  way.rules = R"j({"take": "p.{e}", "back": [{"concat": 0, "over": "e"}], "give": "q.{e}"})j";
  EXPECT_THAT(error(way.undone()), HasSubstr("nothing is stacked in back"));
  way.rules = R"j({"take": "p", "back": true, "give": "q"})j";
  EXPECT_THAT(error(way.undone()), HasSubstr("a list of at most 64 operations belongs"));
}

TEST(Undo, LeavesOutWhatTheModelHasNothingOf) {
  Way way{{{"l.0.w", DType::F32, {2, 3}}, {"l.1.w", DType::F32, {2, 3}}},
          R"j({"take": "l.{i}.w", "copy": true,
               "do": [{"fill": 1, "dtype": "F32", "shape": ["2 * $n", 1]}, {"cast": "BF16"}],
               "back": "drop", "give": "l.{i}.norm"},
             {"take": "l.{i}.norm", "give": "norms.{i}"})j",
          R"j({"n": 2})j"};
  expect_same(way);
  const Result<Undone> back = way.both();
  EXPECT_EQ(back->left_out.count, 2U);
  EXPECT_FALSE(back->does_values);
  // The dropped arrays have the shape that the rule gives.
  way.tensors = {{"norms.0", DType::F32, {4, 1}}, {"l.0.w", DType::F32, {2, 3}}};
  EXPECT_THAT(names(way.undone()), ElementsAre("l.0.w"));
  way.tensors[0].shape = {5, 1};
  EXPECT_EQ(error(way.undone()), "f:1: \"l.0.norm\": 2 * $n is 5 here and 4 by config.json");
  way.tensors[0].shape = {4};
  EXPECT_EQ(error(way.undone()),
            "f:1: \"l.0.norm\": has shape [4], which the operation in line 2 does not give");
  way.tensors.erase(way.tensors.begin());
  EXPECT_EQ(error(way.undone()), "f:4: no tensor fits \"norms.{i}\"");
  // Without it there is no way back.
  way.tensors = {{"q", DType::F32, {4}}};
  way.rules = R"j({"take": "p", "do": [{"fill": 0}], "give": "q"})j";
  EXPECT_EQ(error(way.undone()), "f:1: \"q\": the operation in line 1 has no way back");
}

TEST(Undo, AnItemOfAListSaysWhichTensorsARuleTakes) {
  Way way{{{"l.0.w", DType::F32, {2}}, {"l.1.w", DType::F32, {3}}, {"l.2.w", DType::F32, {2}}},
          R"j({"take": "l.{i}.w", "where": "$kinds[i] = 'full'", "do": [{"shape": ["$sizes[i]"]}],
               "give": "l.{i}.full"},
             {"take": "l.{i}.w", "where": ["$kinds[i] != 'full'", "$sizes[i] > 2"],
               "give": "l.{i}.local"})j",
          R"j({"kinds": ["full", "local", "full"], "sizes": [2, 3, 2]})j"};
  expect_same(way);
  way.tensors.push_back({"l.3.w", DType::F32, {2}});
  EXPECT_EQ(error(way.both()), "f:3: \"l.3.w\": config.json: has no number sizes[3]");
}

TEST(Undo, TakesThePaddingAwayThatTheTensorItselfMeasured) {
  Way way{
      {{"p", DType::F32, {2, 4}}},
      R"j({"take": "p", "do": [{"shape": [2, 4]}, {"pad": 0, "before": "dim(0)"}], "give": "q"})j"};
  expect_same(way);
}

TEST(Undo, AnOperationOfTheWayBackNeedsNoShape) {
  Way way{{{"q", DType::F32, {4}}, {"r", DType::F32, {2, 4}}},
          R"j({"take": ["a", "b"], "do": [{"concat": 0}], "back": [{"split": 0, "sizes": [1, 3]}],
              "give": "q"},
             {"take": "p", "do": [{"pad": 0, "to": 2}], "back": [{"slice": 0, "count": 1}],
              "give": "r"})j"};
  EXPECT_THAT(names(way.undone()), ElementsAre("a", "b", "p"));
}

TEST(Undo, ARuleWhoseConditionNobodyKnowsWasDoneIfWhatItGivesIsThere) {
  Way way{{{"logits", DType::F32, {2}}},
          R"j({"take": "head", "when": "$tied = 0", "give": "logits"})j",
          ""};
  EXPECT_THAT(names(way.undone()), ElementsAre("head"));
  way.config = R"j({"hidden": 1})j";
  EXPECT_EQ(error(way.undone()), "f:1: config.json: has no number tied");
}

TEST(Undo, ANumberOfManyValuesIsNotLearnedFromARuleThatWasNotDone) {
  const std::string rules = R"j({"take": "a", "when": "$kind = 1", "give": "x"},
                                {"take": "b", "when": "$kind = 2", "give": "y"})j";
  EXPECT_THAT(names(Way{{{"x", DType::F32, {2}}}, rules, ""}.undone()), ElementsAre("a"));
  EXPECT_THAT(names(Way{{{"y", DType::F32, {2}}}, rules, ""}.undone()), ElementsAre("b"));
  // A default is no number that is known.
  EXPECT_THAT(
      names(Way{
          {{"x", DType::F32, {2}}}, R"j({"take": "a", "when": "$rank ?? 0 > 0", "give": "x"})j", ""}
                .undone()),
      ElementsAre("a"));
  // Nor where another condition decides.
  const Way left_out{{{"x", DType::F32, {2}}},
                     R"j({"take": "a", "when": ["0 = 1", "$kind = 1"], "give": "x"})j",
                     ""};
  EXPECT_THAT(names(Way(left_out).undone()), ElementsAre("x"));
}

TEST(Undo, AsksForNoNumberThatAnotherStandsFor) {
  ConfigNumbers open;
  open.leave_open();
  const Result<Condition> condition = Condition::parse("$a + ($a ?? $b) = 0", {});
  ASSERT_TRUE(condition);
  EXPECT_THAT(condition->unknowns(open), ElementsAre("a"));
}

TEST(Undo, PartsOfTensorsThatAreCutIntoDifferentNumbersAreNotLost) {
  const Way way{
      {{"w.0", DType::F32, {2, 4}}, {"w.1", DType::F32, {3, 4}}},
      R"j({"take": "w.{e}", "do": [{"deinterleave": 0, "parts": "dim(0)"}, {"stack": "e"}],
                    "give": ["a", "b", "c"]})j"};
  EXPECT_THAT(error(Way(way).both()), HasSubstr("one tensor has 2 parts, another 3"));
}

TEST(Undo, NamesOfDifferentNumbersHaveNoWayBack) {
  for (const char* give : {R"j(["a.{n % 2}", "b.{(n + 1) % 2}"])j",
                           R"j(["a.{2 * n}", "a.{2 * n + 1}"])j", R"j(["a.{n}", "b"])j"}) {
    Way way{{{"src.0", DType::F32, {2, 4}}, {"src.1", DType::F32, {2, 4}}},
            fmt::format(R"j({{"take": "src.{{n}}", "where": "n < 2", "do": [{{"split": 0}}],
                           "give": {}}})j",
                        give)};
    EXPECT_THAT(error(way.undone()), HasSubstr("its names have different numbers")) << give;
  }
}

TEST(Undo, SaysWhatHasNoWayBack) {
  Way way{{{"q", DType::F32, {4}}}, ""};
  const auto says = [&](const std::string& rules) {
    way.rules = rules;
    return error(way.undone());
  };
  EXPECT_EQ(says(R"j({"take": "p", "copy": true, "give": "q"})j"),
            "f:1: the rule has no way back: it copies");
  EXPECT_EQ(says(R"j({"take": "p.{n}", "give": "q"})j"), "f:1: no tensor fits \"q\"");
  EXPECT_EQ(says(R"j({"take": "p.{x:*}", "give": "q"})j"),
            "f:1: the rule has no way back: x is in no name");
  EXPECT_THAT(says(R"j({"take": "{a:*}.{b:*}.{c:*}.{d:*}.{e:*}", "give": "{a}{b}{c}{d}{e}"})j"),
              HasSubstr("more than 3 captures that may end in several places"));
  EXPECT_EQ(says(R"j({"take": "p", "do": [{"slice": 0, "begin": 1}], "give": "q"})j"),
            "f:1: \"q\": the operation in line 1 has no way back");
  EXPECT_EQ(says(R"j({"take": "p", "give": "r"})j"), "f:1: no tensor fits \"r\"");
  EXPECT_EQ(says(R"j({"take": "p", "give": "r", "optional": true})j"), "");
  EXPECT_EQ(says(R"j({"take": "p", "do": [{"split": 0}], "give": ["q", "r"]})j"),
            "f:1: \"q\": no tensor matches \"r\" in this group");
  EXPECT_EQ(says(R"j({"take": "p", "do": [{"shape": [5]}], "give": "q"})j"),
            "f:1: \"q\": 5 is 4 here and 5 by config.json");
  EXPECT_EQ(says(R"j({"take": "p", "do": [{"shape": [2, 2]}, {"reshape": [2, 2, 1]}],
                     "give": "q"})j"),
            "f:1: \"q\": has shape [4], which the operation in line 1 does not give");
  EXPECT_EQ(says(R"j({"take": "p", "do": [{"pad": 0, "to": 4}], "give": "q"})j"),
            "f:1: \"q\": the operation in line 1 has no way back without a shape before it");
  EXPECT_EQ(says(R"j({"take": "p", "do": [{"multiply": "1 / dim(0)"}, {"transpose": [0]}],
                     "give": "q"})j"),
            "f:1: \"q\": the operation in line 1 has no way back without a shape before it");
  EXPECT_EQ(says(R"j({"take": ["o", "p"], "do": [{"concat": 0}], "give": "q"})j"),
            "f:1: \"q\": the operation in line 1 has no way back without a shape before it");
  // How many there were depends on the shape that they had.
  EXPECT_EQ(says(R"j({"take": "p", "do": [{"split": 0, "parts": "dim(0)"}, {"interleave": 0}],
                     "give": "q"})j"),
            "f:1: \"q\": the operation in line 1 has no way back without a shape before it");
  EXPECT_EQ(says(R"j({"take": "p", "do": [{"split": 0, "parts": "rank() + 1"}, {"interleave": 0}],
                     "give": "q"})j"),
            "f:1: \"q\": the operation in line 1 has no way back without a shape before it");
  EXPECT_EQ(says(R"j({"take": "p", "do": [{"reshape": [4]}, {"shape": [4]}], "give": "q"})j"),
            "f:1: \"q\": the operation in line 1 has no way back without a shape before it");
  EXPECT_EQ(says(R"j({"take": "p", "do": [{"split": 0, "parts": 300000}, {"interleave": 0}],
                     "give": "q"})j"),
            "f:1: \"q\": more than 262144 tensors on the way back");
  EXPECT_EQ(says(R"j({"take": "p.{e}", "do": [{"stack": "e", "dim": "rank()"}], "give": "q"})j"),
            "f:1: \"q\": \"rank()\": no shape is known here");
  // A dimension that the shape behind it does not have.
  EXPECT_EQ(says(R"j({"take": "p", "do": [{"pad": 5, "to": 8}, {"shape": [4]}], "give": "q"})j"),
            "f:1: \"q\": the operation in line 1 has no way back without a shape before it");
  EXPECT_EQ(says(R"j({"take": ["o", "p"], "do": [{"concat": 5}, {"shape": [4]}], "give": "q"})j"),
            "f:1: \"q\": the operation in line 1 has no way back without a shape before it");
}

TEST(Undo, WhatDependsOnAShapeHasNoWayBackForTensorsOfDifferentOnes) {
  for (const std::string last : {R"j({"pad": 0, "to": 8})j", R"j({"reshape": ["dim(0)", 1]})j",
                                 R"j({"multiply": "1 / dim(0)"})j"}) {
    const Way way{{{"q", DType::F32, {8}}},
                  R"j({"take": "q", "do": [{"shape": [8]}, {"split": 0, "sizes": [3, 5]}, )j" +
                      last + R"j(], "give": ["a", "b"]})j"};
    EXPECT_THAT(error(Way(way).both()), HasSubstr("has no way back")) << last;
  }
}

TEST(Undo, ANumberOfTheShapeIsThatOfEachTensor) {
  const auto back = [](const std::vector<std::int64_t>& other, const std::string& last) {
    Way way{{{"a", DType::F32, {2, 3}}, {"b", DType::F32, other}},
            R"j({"take": ["a", "b"], "do": [)j" + last + R"j(], "give": ["c", "d"]})j"};
    return error(way.both());
  };
  const std::string each = R"j({"multiply": "1 / dim(0)"})j";
  EXPECT_EQ(back({2, 3}, each), "");
  EXPECT_THAT(back({4, 3}, each), HasSubstr("has no way back"));
  EXPECT_EQ(back({2, 3}, R"j({"transpose": [1, 0]}, )j" + each), "");
  EXPECT_THAT(back({2, 3}, each + R"j(, {"transpose": [1, 0]})j"), HasSubstr("has no way back"));
  EXPECT_THAT(back({2, 3}, each + R"j(, {"transpose": [1, 0]}, {"shape": [3, 2]})j"),
              HasSubstr("has no way back"));
  // How many there are behind a split may be known by the shape only.
  Way split{{{"a", DType::F32, {6, 3}}},
            R"j({"take": "a", "do": [{"split": 0, "sizes": ["dim(0) - 2", 2]}, )j" + each +
                R"j(], "give": ["c", "d"]})j"};
  EXPECT_THAT(error(split.both()), HasSubstr("has no way back"));
  EXPECT_THAT(back({2, 3}, R"j({"pad": 0, "to": 8}, {"shape": [8, 3]})j"),
              HasSubstr("has no way back"));
}

TEST(Undo, WhatARuleSaysOfItsWayBackNeedsNoInverse) {
  for (const std::string first : {R"j({"reshape": [4]})j", R"j({"pad": 0, "to": 2})j"}) {
    const bool pads = first.find("pad") != std::string::npos;
    const std::string shape = pads ? "2, 2" : "4";
    Way way{{{"p", DType::F32, {2, 2}}},
            R"j({"take": "p", "do": [)j" + first + R"j(, {"shape": [)j" + shape +
                R"j(]}], "back": [{"reshape": [2, 2]}], "give": "q"})j"};
    EXPECT_EQ(error(way.both()), "") << first;
  }
}

TEST(Undo, TheRankOfWhatIsNotKnownIsNotZero) {
  Way where{{{"a.w", DType::F32, {2, 3}}},
            R"j({"take": "a.w", "where": "rank() = 2", "give": "b.w"})j"};
  EXPECT_EQ(error(where.both()), "");
  Way shape{{{"w", DType::F32, {8, 3}}},
            R"j({"take": "w", "do": [{"shape": ["4 * rank()", 3]}], "give": "v"})j"};
  EXPECT_EQ(error(shape.both()), "");
}

TEST(Undo, LearnsNoNumberOfWhatIsNotLinearInIt) {
  Way way{{{"v", DType::F32, {64}}, {"y", DType::F32, {128}}},
          R"j({"take": "x", "do": [{"shape": ["$n"]}], "give": "y"},
              {"take": "w", "do": [{"shape": ["min($n, 64)"]}], "give": "v"})j",
          ""};
  const Result<Undone> back = way.undone();
  EXPECT_THAT(names(back), ElementsAre("w", "x"));
  EXPECT_EQ(back->config.number("n"), 128);
}

TEST(Undo, LosesNoTensorWhoseNameComesBackTwice) {
  Way way{{{"q", DType::F32, {4}}, {"r", DType::F32, {4}}},
          R"j({"take": "p", "give": "q"}, {"take": "q", "give": "r"})j"};
  EXPECT_EQ(error(way.undone()), "f:1: \"q\" is there twice on the way back");
}

TEST(Undo, MakesNoMoreTensorsThanAModelHas) {
  Way way{{{"q", DType::U8, {1, (1 << 18) + 1}}},
          R"j({"take": "p.{e}", "do": [{"stack": "e", "dim": 1}], "give": "q"})j"};
  EXPECT_EQ(error(way.undone()), "f:1: \"q\": more than 262144 tensors on the way back");
}

TEST(Undo, LearnsNumbersWhereThereIsNoConfig) {
  Way way{{{"l.0.query", DType::F32, {4, 3, 2}},
           {"l.1.query", DType::F32, {4, 3, 2}},
           {"embed", DType::F32, {10, 4}}},
          R"j({"take": "head", "when": "$tied ?? 0 = 0", "give": "logits"},
             {"take": "e", "do": [{"shape": ["$v", "$h"]}, {"pad": 0, "to": "$v + 3"}],
              "give": "embed"},
             {"take": "m.{i}.q", "do": [{"shape": ["$n * ($d ?? $h // $n)", "$h"]},
              {"transpose": [1, 0]}, {"reshape": ["dim(0)", "$n", -1]}], "give": "l.{i}.query"},
             {"expect": "l.{i}.{x:**}", "over": "i", "count": "$layers"})j",
          ""};
  const Result<Undone> back = way.undone();
  EXPECT_THAT(names(back), ElementsAre("e", "m.0.q", "m.1.q"));
  const std::map<std::string, double> wanted{{"layers", 2}, {"n", 3}, {"d", 2},
                                             {"h", 4},      {"v", 7}, {"tied", 1}};
  for (const auto& [path, number] : wanted) EXPECT_EQ(back->config.number(path), number) << path;
  way.tensors[1].shape = {4, 2, 3};
  EXPECT_EQ(error(way.undone()), "f:4: \"l.1.query\": $n is 2 here and 3 by other arrays");
}

}  // namespace
}  // namespace ckfs
