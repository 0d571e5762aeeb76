#include "view/recipes/recipe.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "support/model_catalog.h"
#include "support/naive_view.h"

namespace ckfs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Result<double> value(std::string_view text) {
  const std::vector<std::string> names{"n", "x"};
  const auto config = ConfigNumbers::parse(
      R"({"a": 7, "flag": true, "odd": NaN, "text_config": {"b": 5, "deep": {"c": 2}, "words": ["w"], "list": [4, []]}})",
      "c");
  const std::vector<std::optional<double>> captures{4, std::nullopt};
  const std::vector<std::int64_t> shape{10, 20};
  const auto parsed = Expression::parse(text, names);
  if (!parsed) return Failure(parsed.error());
  return parsed->evaluate({.config = &*config, .captures = captures, .shape = shape});
}

TEST(Expression, ComputesWithNumbersVariablesConfigAndShape) {
  for (const auto& [text, wanted] :
       std::vector<std::pair<std::string, double>>{{"1 + 2 * 3", 7},
                                                   {"(1 + 2) * 3", 9},
                                                   {"7 // 2", 3},
                                                   {"-7 // 2", -4},
                                                   {"-7 % 2", 1},
                                                   {"1 / 4", 0.25},
                                                   {"n - 1", 3},
                                                   {"$a", 7},
                                                   {"$b", 5},
                                                   {"$text_config.b", 5},
                                                   {"$deep.c", 2},
                                                   {"$list.length", 2},
                                                   {"$none.length ?? 3", 3},
                                                   {"$flag", 1},
                                                   {"dim(1) - dim(0)", 10},
                                                   {"rank()", 2},
                                                   {"1 / sqrt(16)", 0.25},
                                                   {"$none ?? $a", 7},
                                                   {"$none ?? -1", -1},
                                                   {"$a ?? 1", 7},
                                                   {"2 * -$none ?? 1", 1},
                                                   {"dim($none) ?? 1", 1},
                                                   {"$none ?? -1 ?? 5", -1},
                                                   {"$none ?? $nothing ?? 5", 5},
                                                   {"(n + $none ?? 2) * $a", 14},
                                                   {"10 - 2 - 3", 5},
                                                   {"2 * -n", -8},
                                                   {"0.5", 0.5},
                                                   {"min(3, n)", 3},
                                                   {"max(3, min(n, 9)) + 1", 5},
                                                   {"bf16(sqrt(2560))", 50.5},
                                                   {"bf16(sqrt(128))", 11.3125},
                                                   {"f16(1 / 3)", 0.333251953125},
                                                   {"$list[0]", 4},
                                                   {"$list[n - 4] * 2", 8},
                                                   {"$list[1] ?? 7", 7},
                                                   {"$list[2] ?? 7", 7},
                                                   {"$list[0.5] ?? 7", 7},
                                                   {"$words[0] ?? 7", 7},
                                                   {"$none[0] ?? 7", 7},
                                                   {"$odd ?? 3", 3}}) {
    const Result<double> got = value(text);
    ASSERT_TRUE(got) << text << ": " << got.error().message();
    EXPECT_EQ(*got, wanted) << text;
  }
}

TEST(Expression, SaysWhatIsWrong) {
  for (const auto& [text, wanted] : std::vector<std::pair<std::string, std::string>>{
           {"", "ends too early"},
           {"1 +", "ends too early"},
           {"(1", "ends too early"},
           {"1 2", "cannot continue with \"2\""},
           {"m", "cannot continue with \"m\""},
           {"$", "ends too early"},
           {std::string(100, '('), "nested more than"},
           {std::string(1001, '1'), "1001 characters (limit 1000)"},
           {"$none", "config.json: has no number none"},
           {"$list", "config.json: has no number list"},
           {"$deep.length", "config.json: has no number deep.length"},
           {"x", "a capture is not a number"},
           {"dim(2)", "no dimension 2 in a shape of 2"},
           {"dim(0.5)", "no dimension 0.5"},
           {"dim(1e300)", "no dimension 1e+300 in a shape of 2"},
           {"dim(2) ?? 1", "no dimension 2 in a shape of 2"},
           {"x ?? 1", "a capture is not a number"},
           {"$none ?? x ?? 1", "a capture is not a number"},
           {"$none ?? $nothing", "config.json: has no number nothing"},
           {"$list[2]", "config.json: has no number list[2]"},
           {"$list[-1]", "config.json: has no number list[-1]"},
           {"$list[x] ?? 1", "a capture is not a number"},
           {"$list[0", "ends too early"},
           {"$list[]", "cannot continue with \"]\""},
           {"$list [0]", "cannot continue with \"[0]\""},
           {"min(1)", "cannot continue with \")\""},
           {"bf16(1, 2)", "cannot continue with \", 2)\""},
           {"bf16(1e300)", "is inf"},
           {"1 / 0", "\"1 / 0\" is inf"}}) {
    const Result<double> got = value(text);
    ASSERT_FALSE(got) << text;
    EXPECT_THAT(got.error().message(), HasSubstr(wanted)) << text;
  }
}

TEST(Expression, IsADimensionOfAWholeNumber) {
  const auto dimension = [](std::string_view text) {
    return Expression::parse(text, {}).value().is_dim();
  };
  EXPECT_EQ(dimension("dim(0)"), 0U);
  EXPECT_EQ(dimension("dim(12)"), 12U);
  for (const char* text : {"dim(0.5)", "dim(1e300)", "dim(-1)", "dim(1 + 1)", "2", "1 + dim(0)"}) {
    EXPECT_EQ(dimension(text), std::nullopt) << text;
  }
}

/// The message that reading a recipe of these rules ends with; empty: it can be read.
std::string fault(std::string_view rules) {
  const auto read =
      add_recipe(Recipes(), fmt::format("{{\"view\": \"v\", \"rules\": [\n{}\n]}}", rules), "f");
  return read ? "" : read.error().message();
}

TEST(Recipe, ErrorsHaveTheLine) {
  for (const auto& [rules, wanted] : std::vector<std::pair<std::string, std::string>>{
           {R"({"take": "a", "give": "b"})", ""},
           {R"({"take": "a", "give": "b"}, 5)", "f:2: a number where a rule (an object) belongs"},
           {"{}", "f:2: a rule has one of take, select, drop, expect, forbid, only, use"},
           {"{\"take\": \"a\",\n\"give\": 5}", "f:3: a number where a string, or a list of 1 to"},
           {R"({"take": "a"})", "f:2: a rule that takes must give"},
           {R"({"take": [], "give": "b"})", "f:2: a list where a string, or a list of 1 to 64,"},
           {R"({"take": "a", "give": "b", "gives": 1})", "f:2: no member \"gives\" belongs here"},
           {R"({"drop": "a", "give": "b"})", "f:2: no member \"give\" belongs here"},
           {R"({"take": "a", "give": "b", "optional": 1})", "f:2: a number where true or false"},
           {R"({"only": "a", "optional": true})", "f:2: no member \"optional\" belongs here"},
           {R"({"forbid": "a", "optional": true})", "f:2: no member \"optional\" belongs here"},
           {R"({"take": ["{a}", "b"], "give": "{a}"})", "has no capture a, which another pattern"},
           {R"({"take": "a", "give": "{a}"})", "f:2: \"{a}\": expression \"a\": cannot continue"},
           {R"({"take": "a", "give": "b", "where": "1"})", "condition \"1\": none of = != < <="},
           {R"({"take": "a", "give": "b", "when": "$ = 'x'"})", "is not $path = 'word'"},
           {R"({"take": "a", "give": "b", "where": "1 = 'x'"})", "is not $path = 'word' (or !=)"},
           {R"({"take": "a", "give": "b", "when": "$a < 'x'"})", "is not $path = 'word' (or !=)"},
           {R"({"take": "{n}", "give": "b", "when": "n = 1"})", "cannot continue with \"n \""},
           {R"({"take": "a", "give": "b", "axes": [1]})", "f:2: a number where a string belongs"},
           {R"({"only": "a", "give": "b"})", "f:2: no member \"give\" belongs here"},
           {R"({"expect": "{n}", "over": "n"})", "has over (a variable) and count, or neither"},
           {R"({"expect": "{n:*}", "over": "n", "count": 1})", "\"n\" is not a number in each"},
           {R"({"expect": "{n}", "over": "m", "count": 1})", "\"m\" is not a number in each"},
           {R"({"expect": "a", "each": 1})", "f:2: a number where true or false"},
           {R"({"drop": "a", "each": true})", "f:2: no member \"each\" belongs here"},
           {R"({"use": "list"})", "f:2: there is no list \"list\" before this one"},
           {R"({"use": "list", "where": "1 = 1"})", "f:2: no member \"where\" belongs here"},
           {R"({"use": "list", "when": "1"})", "condition \"1\": none of = != < <="},
           {R"({"use": "list", "when": "n = 1"})", "cannot continue with \"n \""},
           {R"({"take": "a", "give": "b", "let": 3})", "f:2: a number where an object belongs"},
           {R"({"take": "a", "give": "b", "let": {"a": 1}})", "a number where an expression (a"},
           {R"({"take": "{a}", "give": "b", "let": {"a": "1"}})", "\"a\" is a variable already"},
           {R"({"take": "a", "give": "b", "do": {}})", "an object where a list of at most 64"},
           {R"({"take": "a", "give": "b", "do": [1]})", "f:2: a number where an operation belongs"},
           {R"({"take": "a", "give": "b", "do": [{"turn": 1}]})", "\"turn\" is not an operation"},
           {R"({"take": "a", "give": "b", "do": [{"concat": 1, "dim": 2}]})",
            "f:2: concat has no member \"dim\""},
           {R"({"take": "a", "give": "b", "do": [{"split": 0, "sizes": []}]})",
            "f:2: split: sizes has no number"},
           {R"({"take": "a", "give": "b", "do": [{"concat": []}]})",
            "a list where a number or an expression belongs"},
           {R"({"take": "a", "give": "b", "do": [{"transpose": 1}]})",
            "a number where a list of at most 64 numbers belongs"},
           {R"({"take": "a", "give": "b", "do": [{"cast": "F8"}]})", "cast: no such dtype"},
           {R"({"take": "a", "give": "b", "do": [{"cast": "I32"}]})", "cast: no such dtype"},
           {R"({"take": "a", "give": "b", "do": [{"cast": "F32", "integers": 1}]})",
            "f:2: integers: neither true nor false"},
           {R"({"take": "a", "give": "b", "do": [{"fill": 1, "dtype": "F8_E4M3"}]})",
            "f:2: fill: no such dtype (F64, F32, F16, BF16 or an integer's)"},
           {R"({"take": "a", "give": "b", "do": [{"fill": 1, "shape": 2}]})",
            "a number where a list of at most 64 numbers belongs"},
           {R"({"take": "a", "give": "b", "do": [{"fill": 1, "count": 2}]})",
            "f:2: fill has no member \"count\""},
           {R"({"take": "a", "give": "b", "back": "all"})", "f:2: back: \"all\" is not drop"},
           {R"({"take": "{a:*}", "give": "b{a}", "where": "$x[a = 'y'"})",
            "condition \"$x[a = 'y'\": no ] behind the index"},
           {R"({"take": "a", "give": "b", "do": [{"canonical_nan": false}]})",
            "canonical_nan: only true has a meaning"},
           {R"({"take": "a", "give": "b", "do": [{"stack": "e"}]})",
            "\"e\" is not a variable of this rule"},
           {R"({"take": "{e}", "give": "b", "do": [{"stack": "e"}, {"stack": "e"}]})",
            "e is stacked or unstacked twice"},
           {R"({"take": "{e:*}", "give": "b", "do": [{"stack": "e"}]})",
            "e is stacked, so its capture must be a number"},
           {R"({"take": "{e}", "give": "{e}", "do": [{"stack": "e"}]})",
            "e is stacked, so no result has it in its name"},
           {R"({"take": "{e}", "give": "b", "do": [{"multiply": "e + 1"}, {"stack": "e"}]})",
            "f:2: the tensors of a result may differ in e, so no operation has it"},
           {R"({"take": "{e}", "let": {"x": "e % 2", "y": "e // 2"}, "give": "b{x}",
                "do": [{"slice": 0, "count": "e"}, {"stack": "y"}]})",
            "may differ in e, so"},
           {R"({"take": "{e}", "let": {"x": "e % 2", "y": "e // 2", "z": "y + 1"}, "give": "b{x}",
                "do": [{"stack": "y"}, {"multiply": "z"}]})",
            "may differ in z, so"},
           {R"({"take": ["a", "b"], "let": {"half": "dim(0) // 2"}, "give": "c",
                "do": [{"slice": 0, "count": "half"}, {"concat": 0}]})",
            "may differ in half, so"},
           {R"({"take": ["{n}.k", "{n}.v"], "let": {"m": "n // 2"}, "give": "kv.{m}",
                "do": [{"multiply": "n + 1"}, {"concat": 0}]})",
            "may differ in n, so"},
           {R"({"take": "a", "take": "b", "give": "c"})", "f:2: key \"take\" comes twice"},
           {R"({"take": "a" "give": "c"})", "f:2: not JSON: neither ',' nor '}' after a member"}}) {
    if (wanted.empty()) {
      EXPECT_EQ(fault(rules), "");
    } else {
      EXPECT_THAT(fault(rules), HasSubstr(wanted)) << rules;
    }
  }
}

/// `text`, `count` times, with commas between.
std::string times(std::size_t count, std::string_view text) {
  return fmt::format("{}", fmt::join(std::vector<std::string_view>(count, text), ", "));
}

TEST(Recipe, ListsHaveLimits) {
  EXPECT_EQ(fault(times(kMaxRules, R"({"drop": "a"})")), "");
  EXPECT_THAT(fault(times(kMaxRules + 1, R"({"drop": "a"})")),
              HasSubstr("a list where a list of 1 to 1000 rules belongs"));
  const auto names = [](std::size_t count) {
    return fault(fmt::format(R"({{"take": "a", "give": [{}]}})", times(count, R"("b")")));
  };
  EXPECT_EQ(names(64), "");
  EXPECT_THAT(names(65), HasSubstr("a list where a string, or a list of 1 to 64,"));
  // Of all lists of a file together: each use copies.
  const auto lists = [](std::size_t count) {
    std::string text = fmt::format(R"("l0": [{}])", times(500, R"({"drop": "a"})"));
    for (std::size_t k = 1; k < count; ++k) {
      text += fmt::format(R"(, "l{}": [{{"use": "l0"}}, {{"use": "l0"}}])", k);
    }
    const auto added = add_recipe({}, fmt::format(R"({{"lists": {{{}}}}})", text), "f");
    return added ? "" : added.error().message();
  };
  EXPECT_EQ(lists(10), "");
  EXPECT_THAT(lists(11), HasSubstr("lists of more than 10000 rules"));
  const auto operations = [](std::size_t count) {
    return fault(fmt::format(R"({{"take": "a", "do": [{}], "give": "b"}})",
                             times(count, R"({"concat": 0})")));
  };
  EXPECT_EQ(operations(64), "");
  EXPECT_THAT(operations(65), HasSubstr("a list where a list of at most 64 operations"));
  const auto numbers = [](std::size_t count) {
    return fault(fmt::format(R"({{"take": "a", "do": [{{"transpose": [{}]}}], "give": "b"}})",
                             times(count, "0")));
  };
  EXPECT_EQ(numbers(64), "");
  EXPECT_THAT(numbers(65), HasSubstr("a list where a list of at most 64 numbers belongs"));
  const auto variables = [](std::size_t count) {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < count; ++i) all.push_back(fmt::format(R"("v{}": "1")", i));
    return fault(
        fmt::format(R"({{"take": "a", "let": {{{}}}, "give": "b"}})", fmt::join(all, ", ")));
  };
  EXPECT_EQ(variables(16), "");
  EXPECT_THAT(variables(17), HasSubstr("more than 16 variables in a rule"));
}

TEST(Recipe, IsAViewOrAFamily) {
  const auto read = [](std::string_view text) {
    const auto recipes = add_recipe(built_in_recipes(), text, "f");
    return recipes ? std::string() : recipes.error().message();
  };
  const std::string rules = R"("rules": [{"drop": "a"}])";
  EXPECT_EQ(read(fmt::format("{{\"view\": \"v\", {}}}", rules)), "");
  EXPECT_EQ(read("{}"), "f: is neither a view nor a family (no such member)");
  EXPECT_EQ(read(R"({"view": "v"})"), "f: has no rules");
  EXPECT_THAT(read(fmt::format("{{\"view\": \"source\", {}}}", rules)), HasSubstr("such a view"));
  EXPECT_THAT(read(fmt::format("{{\"view\": \".v\", {}}}", rules)),
              HasSubstr("not a name of a view"));
  EXPECT_THAT(read(fmt::format("{{\"view\": \"v@a\", {}}}", rules)), HasSubstr("not a name of a"));
  EXPECT_THAT(read(fmt::format("{{\"view\": \"v\", \"from\": \"w\", {}}}", rules)),
              HasSubstr("f: from: w: no such view"));
  for (const char* from : {"fp32-consolidated@format=bin", "bf16-safetensors@max_shard=1GB"}) {
    EXPECT_THAT(read(fmt::format("{{\"view\": \"v\", \"from\": \"{}\", {}}}", from, rules)),
                HasSubstr("is of that view's files, not of its tensors"));
  }
  EXPECT_THAT(read(fmt::format("{{\"view\": \"v\", \"container\": \"zip\", {}}}", rules)),
              HasSubstr("f:1: container \"zip\" is neither safetensors nor orbax"));
  EXPECT_THAT(read(R"({"family": "m", "experts": {}})"), HasSubstr("where a list of names"));
  EXPECT_THAT(read(R"({"family": ["m"]})"), HasSubstr("has no experts"));
  EXPECT_THAT(read(R"({"family": ["m"], "experts": {"dense": []}})"), HasSubstr("\"dense\""));
  EXPECT_THAT(read(R"({"family": ["m"], "experts": {"packed": "fused"}})"),
              HasSubstr("\"fused\" is not a layout with rules"));
  EXPECT_THAT(read(std::string(kMaxRecipe + 1, ' ')), HasSubstr("bytes (limit 1048576)"));
  EXPECT_EQ(read(R"({"lists": {"mine": [{"drop": "a"}], "more": [{"use": "mine"}]}})"), "");
  EXPECT_THAT(read(R"({"lists": {"a": [{"use": "b"}], "b": [{"drop": "a"}]}})"),
              HasSubstr("f:1: there is no list \"b\" before this one"));
  EXPECT_THAT(read(R"({"lists": {"maxtext-mlp": [{"drop": "a"}]}})"),
              HasSubstr("there is a list \"maxtext-mlp\" already"));
  EXPECT_THAT(read(R"({"lists": {"a": [{"drop": "a"}]}, "vieww": "v"})"), HasSubstr("\"vieww\""));
  EXPECT_THAT(read(R"({"lists": []})"), HasSubstr("f:1: a list where an object belongs"));
  const auto trees = [&](std::string_view members) {
    return read(fmt::format(R"({{"family": ["m"], "maxtext": {{{}}}}})", members));
  };
  EXPECT_EQ(trees(R"("unscanned": [{"use": "maxtext-mlp"}], "scanned": [{"drop": "a"}],
                     "config": {"head_dim": 2}, "where": "$a = 1", "models": "m1")"),
            "");
  EXPECT_EQ(trees(R"("unscanned": [{"drop": "a"}])"), "");
  EXPECT_THAT(trees(R"("scanned": [{"drop": "a"}])"), HasSubstr("maxtext has no unscanned"));
  EXPECT_THAT(trees(R"("unscanned": [{"drop": "a"}], "by_config": 1)"),
              HasSubstr("a number where true or false belongs"));
  EXPECT_THAT(trees(R"("nonscanned": [{"drop": "a"}])"), HasSubstr("\"nonscanned\""));
  EXPECT_THAT(trees(R"("config": {"a": "1"})"), HasSubstr("a string where a number belongs"));
  EXPECT_THAT(trees(R"("where": "n = 1")"), HasSubstr("cannot continue"));
  const auto program = [&](std::string_view members) {
    return read(fmt::format(R"({{"family": ["m"], "megatron": {{{}}}}})", members));
  };
  EXPECT_EQ(program(R"("read": [{"use": "megatron-ends"}], "config": {"head_dim": 2})"), "");
  EXPECT_THAT(program(R"("config": {})"), HasSubstr("f:1: has no read"));
  EXPECT_THAT(program(R"("reads": [{"drop": "a"}])"), HasSubstr("\"reads\""));
  EXPECT_THAT(program(R"("read": [{"drop": "a"}], "config": 1)"),
              HasSubstr("a number where an object belongs"));
}

/// A model to do rules on, with what they make of it.
class Rules : public testing::Test {
 protected:
  Rules() {
    model_.config(R"({"model_type": "m", "text_config": {"model_type": "t"}, "size": 2,
                      "architectures": ["M"]})");
    model_.shard("a.safetensors", {{"l.0.e.0.w", DType::BF16, {2, 3}},
                                   {"l.0.e.1.w", DType::BF16, {2, 3}},
                                   {"norm", DType::F32, {4}}});
    model_.shard("b.safetensors", {{"l.1.e.1.w", DType::BF16, {2, 3}},
                                   {"l.1.e.0.w", DType::BF16, {2, 3}},
                                   {"q", DType::F8E4M3, {2, 3}, true}});
    source_ = &model_.source();
    catalog_ = model_.build();
  }

  Result<TensorList> apply(std::string_view rules, TensorList list) {
    auto recipes = add_recipe(
        Recipes(), fmt::format("{{\"view\": \"v\", \"rules\": [\n{}]}}", rules), "f.json");
    EXPECT_TRUE(recipes) << recipes.error().message();
    if (!recipes) return Failure(recipes.error());
    return apply_rules(recipes->views[0].rules, *config_numbers(*catalog_), std::move(list));
  }

  TensorList all() {
    TensorList list;
    for (std::uint32_t shard = 0; shard < catalog_->shards().size(); ++shard) {
      for (const TensorId id : catalog_->shards()[shard].tensors) {
        list.tensors.push_back({.name = catalog_->tensor(id).name,
                                .expr = TensorExpr::stored(*catalog_, id),
                                .exactness = exactness_of(*catalog_, id, DType::BF16),
                                .shard = shard});
      }
    }
    return list;
  }

  std::vector<std::string> result(std::string_view rules) {
    const auto list = apply(rules, all());
    if (!list) return {list.error().message()};
    std::vector<std::string> lines;
    for (const ModelTensor& tensor : list->tensors) {
      constexpr std::array kLabels{"bit-exact", "exact", "lossy"};
      lines.push_back(fmt::format("{} [{}] {} {}", tensor.name, fmt::join(tensor.expr.shape(), ","),
                                  tensor.shard,
                                  kLabels[static_cast<std::size_t>(tensor.exactness)]));
    }
    return lines;
  }

  ModelCatalog model_;
  MemorySource* source_ = nullptr;
  std::shared_ptr<const Catalog> catalog_;
};

TEST_F(Rules, ResultsStandWhereTheirFirstPartStood) {
  EXPECT_THAT(result(R"({"take": "l.{n}.e.{e}.w", "do": [{"stack": "e"}], "give": "l.{n}.w"})"),
              ElementsAre("l.0.w [2,2,3] 0 bit-exact", "norm [4] 0 lossy",
                          "l.1.w [2,2,3] 1 bit-exact", "q [2,3] 1 bit-exact"));
  // Of two shards: that of the first.
  EXPECT_THAT(result(R"({"take": "l.{n}.e.{e}.w", "do": [{"stack": "n"}], "give": "e.{e}"},
                        {"drop": ["q", "norm"]})"),
              ElementsAre("e.0 [2,2,3] 0 bit-exact", "e.1 [2,2,3] 0 bit-exact"));
}

TEST_F(Rules, AreAsExactAsTheLeastExactPart) {
  EXPECT_THAT(result(R"({"select": "norm"}, {"take": "norm", "do": [{"cast": "F64"}],
                         "give": "norm"})"),
              ElementsAre("norm [4] 0 lossy"));
  EXPECT_THAT(result(R"({"select": "l.0.e.0.w"},
                        {"take": "l.0.e.0.w", "do": [{"cast": "F32"}], "give": "w"})"),
              ElementsAre("w [2,3] 0 exact"));
  EXPECT_THAT(result(R"({"select": "l.0.e.0.w"},
                        {"take": "l.0.e.0.w", "do": [{"multiply": 2}], "give": "w"})"),
              ElementsAre("w [2,3] 0 lossy"));
}

TEST_F(Rules, NameWhatDoesNotFit) {
  for (
      const auto& [rules, wanted] : std::vector<std::pair<std::string, std::string>>{
          {R"({"take": "none", "give": "a"})", "f.json:2: no tensor fits \"none\""},
          {R"({"expect": "none"})", "f.json:2: no tensor fits \"none\""},
          {R"({"drop": "none"})", "f.json:2: no tensor fits \"none\""},
          {R"({"forbid": "n{x:*}"})", "f.json:2: \"norm\" fits \"n{x:*}\" and should not be"},
          {R"({"take": "norm", "give": "q"})",
           "f.json:2: \"q\": is made by this rule and is there already"},
          {R"({"take": "l.{n}.e.{e}.w", "give": "l.{n}"})",
           "f.json:2: \"l.0\": is made twice, of \"l.0.e.0.w\" and of \"l.0.e.1.w\""},
          {R"({"take": "l.{n}.e.{e}.w", "where": "e = 1", "do": [{"stack": "e"}], "give": "{n}"})",
           "f.json:2: \"0\": e 0 is missing (in the group of \"l.0.e.1.w\")"},
          {R"({"take": "l.{n}.e.{e}.w", "do": [{"stack": "e"}], "give": "one"})",
           "f.json:2: \"one\": e 0 comes twice (in the group of \"l.0.e.0.w\")"},
          {"{\"take\": \"l.{n}.e.{e}.w\",\n\"do\": [{\"stack\": \"e\",\n\"count\": 3}], "
           "\"give\": \"{n}\"}",
           "f.json:3: \"0\": 2 values of e where there must be 3 (\"l.0.e.0.w\")"},
          {R"({"take": ["l.{n}.e.0.w", "l.{n}.e.2.w"], "do": [{"concat": 0}], "give": "{n}"})",
           "\"l.0.e.0.w\": no tensor matches \"l.{n}.e.2.w\" in this group"},
          {R"({"take": "norm", "do": [{"split": 0}], "give": "a"})",
           "\"norm\": 2 tensors for 1 names in give"},
          {R"({"take": "norm", "do": [{"split": 0, "sizes": [1, 2]}], "give": ["a", "b"]})",
           "\"a\": split: sizes are 3 of 4 elements"},
          {R"({"take": "norm", "do": [{"split": 0, "sizes": [3, 2]}], "give": ["a", "b"]})",
           "\"a\": split: sizes are more than the 4 elements"},
          {R"({"take": "norm", "do": [{"deinterleave": 0, "parts": 3}], "give": ["a", "b", "c"]})",
           "\"a\": deinterleave of 4 elements into 3"},
          {R"({"take": "norm", "do": [{"pad": 0, "to": 3}], "give": "a"})",
           "\"a\": pad: 4 elements become 3"},
          {R"({"take": "norm", "do": [{"pad": 1, "to": 3}], "give": "a"})",
           "\"a\": pad: no dimension 1"},
          {R"({"take": "norm", "do": [{"unstack": "i", "dim": 1}], "give": "{i}"})",
           "unstack: no dimension 1"},
          {R"({"take": "norm", "do": [{"slice": 0, "count": 0}, {"unstack": "i"}, {"promote": true}],
               "give": "n.{i}"})",
           "\"norm\": unstack: nothing along dimension 0 of shape [0]"},
          {R"({"take": "norm", "do": [{"reshape": [3, -1]}], "give": "a"})",
           "\"a\": reshape [4] to [3, 1]: 4 elements become 3"},
          {R"({"take": "norm", "do": [{"transpose": [1, 0]}], "give": "a"})",
           "\"a\": transpose [1, 0] of shape [4]: not a permutation"},
          {R"({"take": "norm", "do": [{"stack": "n"}], "let": {"n": "$none"}, "give": "a"})",
           "\"norm\": config.json: has no number none"},
          {R"({"take": "l.{n}.e.{e}.w", "let": {"k": "n / 2"}, "do": [{"stack": "k"}], "give": "{e}"})",
           "k is 0.5 (0 to 999999999)"},
          {R"({"take": "l.{n}.e.{e}.w", "let": {"k": "1e300"}, "do": [{"stack": "k"}], "give": "{e}"})",
           "k is 1e+300 (0 to 999999999)"},
          {R"({"take": "l.{n}.e.{e}.w", "let": {"k": "n - 1"}, "do": [{"stack": "k"}], "give": "{e}"})",
           "k is -1 (0 to 999999999)"},
          {R"({"take": "l.{n}.e.{e}.w", "give": "{n - 1}.{e}"})",
           "\"l.0.e.0.w\": \"n - 1\" is -1 in a name (0 to 999999999)"},
          {fmt::format(R"({{"take": "norm", "give": "{}"}})", std::string(500, 'n')) +
               R"(, {"take": "n{x:**}", "give": "{x}{x}{x}{x}{x}{x}{x}{x}{x}"})",
           "becomes a name of 4491 characters (limit 4096)"},
          {R"({"take": "{x:**}norm", "give": "{x}"})",
           "\"norm\": becomes a tensor without a name"}}) {
    EXPECT_THAT(result(rules), ElementsAre(HasSubstr(wanted))) << rules;
  }
}

TEST_F(Rules, CountingCostsWhatThereIs) {
  // A group for each tensor, of half a million by its count: their bits would be 60 GB.
  ModelCatalog model;
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 2000; ++i) tensors.push_back({fmt::format("{}.999999", i), DType::U8, {1}});
  tensors.push_back({"0.1", DType::U8, {1}});
  tensors.push_back({"0.0", DType::U8, {1}});
  const auto catalog = model.state(tensors).build();
  TensorList list;
  for (const TensorId id : catalog->shards()[0].tensors) {
    list.tensors.push_back(
        {.name = catalog->tensor(id).name, .expr = TensorExpr::stored(*catalog, id)});
  }
  const auto recipes = add_recipe(
      {}, R"({"view": "v", "rules": [{"expect": "{g}.{n}", "over": "n", "count": 1000000}]})", "f");
  const auto made = apply_rules(recipes->views[0].rules, ConfigNumbers(), std::move(list));
  EXPECT_EQ(made ? "" : made.error().message(),
            "f:1: \"0.999999\": n 2 is missing, of 1000000 tensors like this one");
}

TEST_F(Rules, AxesMoveWithTheirDimensions) {
  const auto axes = [&](std::string_view rules) {
    const auto list = apply(rules, all());
    if (!list) return std::vector<std::string>{list.error().message()};
    std::vector<std::string> lines;
    for (const ModelTensor& tensor : list->tensors) {
      lines.push_back(
          fmt::format("{}: {}", tensor.name,
                      tensor.split == ModelTensor::kNone
                          ? "-"
                          : fmt::format("{}", fmt::join(list->axes[tensor.split], ","))));
    }
    return lines;
  };
  const std::string named =
      R"({"select": "l.{x:**}"}, {"take": "l.{n}.e.{e}.w", "give": "{n}.{e}", "axes": ["in", "out"]},)";
  EXPECT_THAT(axes(named + R"({"take": "{n}.{e}", "do": [{"stack": "e", "dim": 1},
                              {"transpose": [2, 0, 1]}, {"multiply": 2}], "give": "{n}"})"),
              ElementsAre("0: out,in,", "1: out,in,"));
  EXPECT_THAT(axes(named + R"({"drop": ["0.1", "1.{e}"]},
                              {"take": "0.0", "do": [{"unstack": "i"}], "give": "{i}"})"),
              ElementsAre("0: out", "1: out"));
  EXPECT_THAT(axes(named + R"({"drop": ["0.1", "1.{e}"]},
                              {"take": "0.0", "do": [{"reshape": [6]}], "give": "a"})"),
              ElementsAre("a: -"));
  // Those of the first tensor, where they fit what is made.
  EXPECT_THAT(axes(R"({"select": ["norm", "q"]}, {"take": "norm", "give": "norm", "axes": "norm"},
                      {"take": ["norm", "q"], "give": ["a", "b"]})"),
              ElementsAre("a: norm", "b: -"));
  EXPECT_THAT(axes(R"({"take": "norm", "give": "norm", "axes": ["a", "b"]})"),
              ElementsAre("f.json:2: \"norm\": 2 axes for a shape of 1 dimensions"));
}

TEST_F(Rules, CountWhatMustBeThere) {
  EXPECT_THAT(result(R"({"expect": "l.{n}.e.{e}.w", "over": "e", "count": 2}, {"select": "norm"})"),
              ElementsAre("norm [4] 0 lossy"));
  EXPECT_THAT(result(R"({"expect": "l.{n}.e.{e}.w", "over": "n", "count": 3})"),
              ElementsAre("f.json:2: \"l.0.e.0.w\": n 2 is missing, of 3 tensors like this one"));
  EXPECT_THAT(
      result(R"({"drop": "l.0.e.1.w"}, {"expect": "l.{n}.e.{e}.w", "over": "n", "count": 2})"),
      ElementsAre("f.json:2: \"l.1.e.1.w\": n 0 is missing, of 2 tensors like this one"));
  EXPECT_THAT(result(R"({"expect": "l.{n}.e.{e}.w", "over": "n", "count": 1})"),
              ElementsAre("f.json:2: \"l.1.e.1.w\": n is 1, of 1 (counted from 0)"));
  EXPECT_THAT(result(R"({"expect": "m.{n}", "over": "n", "count": 1})"),
              ElementsAre("f.json:2: no tensor fits \"m.{n}\""));
  EXPECT_THAT(result(R"({"expect": "m.{n}", "over": "n", "count": "$none"})"),
              ElementsAre("f.json:2: count: config.json: has no number none"));
  // Patterns of a list stand for each other, unless each must be there.
  const std::string moved = R"({"take": "l.1.e.{e}.w", "give": "k.1.{e}"}, )";
  const std::string both = R"({"expect": ["l.{n}.e.{e}.w", "k.{n}.{e}"], "over": "n", "count": 2)";
  EXPECT_THAT(result(moved + both + R"(}, {"select": "norm"})"), ElementsAre("norm [4] 0 lossy"));
  EXPECT_THAT(result(moved + both + R"(, "each": true})"),
              ElementsAre("f.json:2: \"l.0.e.0.w\": n 1 is missing, of 2 tensors like this one"));
  EXPECT_THAT(result(R"({"expect": ["norm", "none"]}, {"select": "norm"})"),
              ElementsAre("norm [4] 0 lossy"));
  EXPECT_THAT(result(R"({"expect": ["norm", "none"], "each": true})"),
              ElementsAre("f.json:2: no tensor fits \"none\""));
  EXPECT_THAT(result(R"({"only": ["l.{x:**}", "norm"]})"),
              ElementsAre("f.json:2: \"q\" is not a tensor that the rules know"));
}

TEST_F(Rules, OptionalOnesMayFindNothing) {
  EXPECT_THAT(result(R"({"select": "norm"}, {"take": "none", "give": "a", "optional": true},
                        {"drop": "none", "optional": true})"),
              ElementsAre("norm [4] 0 lossy"));
}

TEST_F(Rules, KeepOtherNamesOfATensorAsLongAsBothMove) {
  const auto tied = [&] {
    TensorList list = all();
    list.tensors[1].same_as = 0;
    list.tensors[4].same_as = 0;
    return list;
  };
  const auto same = [&](std::string_view rules) {
    const auto list = apply(rules, tied());
    std::vector<std::uint32_t> indexes;
    if (!list) return indexes;
    for (const ModelTensor& tensor : list->tensors) indexes.push_back(tensor.same_as);
    return indexes;
  };
  constexpr std::uint32_t kNone = ModelTensor::kNone;
  EXPECT_THAT(same(R"({"take": "l.{x:**}", "give": "m.{x}"})"),
              ElementsAre(kNone, 0, kNone, kNone, 0, kNone));
  EXPECT_THAT(same(R"({"take": "l.0.e.0.w", "do": [{"transpose": [1, 0]}], "give": "t"})"),
              ElementsAre(kNone, kNone, kNone, kNone, kNone, kNone));
  // Of two columns neither is known to be the one that the others are names of.
  EXPECT_THAT(same(R"({"take": ["l.{n}.e.0.w", "l.{n}.e.1.w"], "give": ["a.{n}", "b.{n}"]})"),
              ElementsAre(kNone, kNone, kNone, kNone, kNone, kNone));
  EXPECT_THAT(same(R"({"drop": "l.0.e.0.w"})"), ElementsAre(kNone, kNone, kNone, kNone, kNone));
  EXPECT_THAT(same(R"({"drop": "norm"})"), ElementsAre(kNone, 0, kNone, 0, kNone));
}

/// The parts of a flow by name of column and key, as bytes.
std::vector<std::vector<std::byte>> bytes_of(const Catalog& catalog, MemorySource& source,
                                             const Flow& flow) {
  std::vector<std::vector<std::byte>> all;
  for (const FlowColumn& column : flow.columns) {
    for (const FlowPart& part : column.parts) {
      all.push_back(*naive_tensor(catalog, source, part.expr));
    }
  }
  return all;
}

TEST_F(Rules, OperationsAreUndoneByTheirInverses) {
  const TensorList list = all();
  const auto flow_of = [&](std::initializer_list<std::size_t> tensors, bool as_columns) {
    Flow flow;
    std::int32_t key = 0;
    for (const std::size_t index : tensors) {
      if (as_columns || flow.columns.empty())
        flow.columns.push_back({list.tensors[index].name, {}});
      FlowPart part{{}, list.tensors[index].expr};
      if (!as_columns) part.keys[0] = key++;
      flow.columns.back().parts.push_back(std::move(part));
    }
    return flow;
  };
  struct Case {
    std::string operation;
    Flow flow;
    bool invertible = true;
  };
  const std::vector<Case> cases{{R"({"stack": "e", "dim": 1})", flow_of({0, 1}, false)},
                                {R"({"concat": 1})", flow_of({0, 1}, true)},
                                {R"({"interleave": 1})", flow_of({0, 1, 3}, true)},
                                {R"({"split": 0})", flow_of({0}, true)},
                                {R"({"split": 1, "sizes": [2, 1]})", flow_of({0}, true)},
                                {R"({"deinterleave": 1, "parts": 3})", flow_of({0}, true)},
                                {R"({"split": 0})", flow_of({0, 1}, true), false},
                                {R"({"deinterleave": 1})", flow_of({0, 1}, true), false},
                                {R"({"transpose": [1, 0]})", flow_of({0}, true)},
                                {R"({"reshape": [3, -1]})", flow_of({0}, true)},
                                {R"({"pad": 1, "before": 2, "after": 1})", flow_of({0}, true)},
                                {R"({"pad": 0, "to": 7})", flow_of({0}, true)},
                                {R"({"cast": "F32"})", flow_of({0}, true)},
                                {R"({"shape": [2, 3]})", flow_of({0}, true)},
                                {R"({"promote": true})", flow_of({0, 1}, true)},
                                {R"({"multiply": 4})", flow_of({0}, true)},
                                {R"({"add": 0})", flow_of({0}, true)},
                                {R"({"slice": 1, "begin": 1})", flow_of({0}, true), false},
                                {R"({"concat": 0, "over": "e"})", flow_of({0, 1}, false), false},
                                {R"({"multiply": 0})", flow_of({0}, true), false},
                                {R"({"flush_subnormals": true})", flow_of({0}, true), false},
                                {R"({"canonical_nan": true})", flow_of({0}, true), false}};
  const Variables variables{"e"};
  for (const Case& test : cases) {
    SCOPED_TRACE(test.operation);
    const auto json = parse_json_tree(test.operation, "f", JsonKeys::Unique);
    std::vector<std::string> keys;
    const auto operation = Operation::parse(*json, "f", variables, keys);
    ASSERT_TRUE(operation) << operation.error().message();
    FlowShape before{{}, test.flow.columns[0].parts[0].expr.dtype()};
    for (const FlowColumn& column : test.flow.columns) {
      const auto shape = column.parts[0].expr.shape();
      before.shapes.emplace_back(shape.begin(), shape.end());
    }
    const std::optional<Operation> back = operation->inverse(before);
    EXPECT_EQ(back.has_value(), test.invertible);
    if (!back) continue;
    const auto there = operation->run(test.flow, {});
    ASSERT_TRUE(there) << there.error().message();
    EXPECT_FALSE(bytes_of(*catalog_, *source_, *there) ==
                     bytes_of(*catalog_, *source_, test.flow) &&
                 there->columns[0].parts[0].expr.shape().size() == before.shapes[0].size() &&
                 test.operation.find("add") == std::string::npos &&
                 test.operation.find("transpose") == std::string::npos &&
                 test.operation.find("promote") == std::string::npos &&
                 test.operation.find("shape") == std::string::npos);
    const auto again = back->run(*there, {});
    ASSERT_TRUE(again) << again.error().message();
    EXPECT_EQ(bytes_of(*catalog_, *source_, *again), bytes_of(*catalog_, *source_, test.flow));
    EXPECT_EQ(again->columns[0].parts[0].expr.dtype(), before.dtype);
  }
}

TEST_F(Rules, ModelsAreToldFromTheTopDown) {
  EXPECT_THAT(config_numbers(*catalog_)->families(), ElementsAre("m", "t", "M"));
  EXPECT_THAT(ConfigNumbers().families(), IsEmpty());
}

TEST(ConfigNumbers, AreSoughtAmongFewMembers) {
  const auto with = [](std::string_view before, std::size_t members, std::string_view after) {
    std::string text(before);
    for (std::size_t i = 0; i < members; ++i) text += fmt::format(R"("k{}": 1,)", i);
    return ConfigNumbers::parse(text + std::string(after), "config.json");
  };
  EXPECT_EQ(with("{", 999, R"("n": 7})")->number("n"), 7);
  EXPECT_EQ(with("{", 1000, R"("n": 7})").error().message(),
            "config.json:1: an object of 1001 members, in which numbers are sought (limit 1000)");
  EXPECT_FALSE(with(R"({"text_config": {)", 1000, R"("n": 7}})"));
  EXPECT_FALSE(with(R"({"thinker_config": {"text_config": {)", 1000, R"("n": 7}}})"));
  const auto names = with(R"({"m": 8, "id2label": {)", 30000, R"("n": 7}})");
  EXPECT_EQ(names->number("m"), 8);
  EXPECT_EQ(names->number("id2label.n"), std::nullopt);
}

TEST(BuiltInRecipes, AreChosenByWhatTheirFilesSay) {
  for (const auto& known : built_in_recipes().families) {
    const KnownFamily parsed(known->rules.get());
    EXPECT_EQ(known->models, parsed.models);
    EXPECT_EQ(known->stems, parsed.stems);
    for (const char* member : {"experts", "maxtext", "megatron", "torchtitan", "prime-rl"}) {
      EXPECT_EQ(known->has(member), parsed.has(member)) << known->rules.get().file << member;
    }
  }
  for (const auto& [name, list] : built_in_recipes().lists)
    EXPECT_FALSE(list->get().empty()) << name;
}

TEST(BuiltInRecipes, HaveOneFileForEachModel) {
  std::set<std::string> models;
  for (const auto& known : built_in_recipes().families) {
    const ModelFamily& family = known->rules.get();
    if (family.layouts.empty()) continue;
    for (const std::string& model : family.models) {
      EXPECT_TRUE(models.insert(model).second) << family.file << ": " << model;
    }
    EXPECT_TRUE(family.layouts.contains("fused") && family.layouts.contains("linear"))
        << family.file;
  }
  EXPECT_GT(models.size(), 60u);
}

TEST(BuiltInRecipes, HaveOneListForEachModelOfAProgram) {
  std::set<std::string> models;
  for (const auto& known : built_in_recipes().families) {
    const ModelFamily& family = known->rules.get();
    if (!family.programs.contains("megatron")) continue;
    for (const std::string& model : family.models) {
      EXPECT_TRUE(models.insert(model).second) << family.file << ": " << model;
    }
  }
  EXPECT_GT(models.size(), 10u);
}

/// Names that a pattern fits, of a layer's tensors and of others.
std::vector<std::string> names_of(const Pattern& pattern) {
  std::vector<std::string> names{""};
  std::string_view text = pattern.text();
  const auto add = [&](const std::vector<std::string>& endings) {
    std::vector<std::string> longer;
    for (const std::string& name : names) {
      for (const std::string& ending : endings) longer.push_back(name + ending);
    }
    names = std::move(longer);
  };
  while (!text.empty()) {
    const std::size_t open = text.find('{');
    add({std::string(text.substr(0, open))});
    if (open == std::string_view::npos) break;
    const std::string_view hole = text.substr(open, text.find('}') + 1 - open);
    text.remove_prefix(open + hole.size());
    if (hole.ends_with(":**}") && names.front().empty()) {
      const bool dot = text.starts_with('.');
      std::vector<std::string> places;
      for (const char* place : {"layers.3", "model.layers.3", "model.language_model.layers.3",
                                "layers.3.mlp", "model.language_model.layers.3.self_attn"}) {
        places.push_back(dot ? place : std::string(place) + '.');
      }
      add(places);
    } else if (hole.ends_with(":**}") && text.empty()) {
      if (names.front().ends_with("layers.")) {
        add({"3.norm.weight", "3.gate.weight", "3.feed_forward.w1.weight",
             "3.experts.0.w1.weight"});
      } else {
        add({"weight"});
      }
    } else if (hole.ends_with(":**}")) {
      add({"layers.3", "layers.3.mlp"});
    } else if (const std::size_t words = hole.find(':'); words != std::string_view::npos) {
      const std::string_view first = hole.substr(words + 1);
      add({std::string(first.substr(0, first.find_first_of("|}")))});
    } else {
      add({"3"});
    }
  }
  return names;
}

/// What the rules that only rename make of a name.
std::string renamed(const RuleList& rules, const std::string& name) {
  ModelCatalog model;
  model.shard("m.safetensors", {{"t", DType::BF16, {2, 2}}});
  const auto catalog = model.build();
  TensorList list;
  list.tensors.push_back(
      {.name = list.names.emplace_back(name), .expr = TensorExpr::stored(*catalog, 0), .shard = 0});
  for (const Rule& rule : rules.rules) {
    if (rule.kind != Rule::Kind::Make || !rule.operations.empty()) continue;
    auto next = apply_rule(rule, ConfigNumbers(), std::move(list));
    if (!next) return next.error().message();
    list = *std::move(next);
  }
  return std::string(list.tensors.front().name);
}

TEST(BuiltInRecipes, LeaveNamesThatAreThoseOfTheFusedLayout) {
  for (const auto& known : built_in_recipes().families) {
    const ModelFamily& family = known->rules.get();
    const auto fused = family.layouts.find("fused");
    if (fused == family.layouts.end()) continue;
    std::set<std::string> names;
    for (const Rule& rule : fused->second.rules) {
      if (rule.kind != Rule::Kind::Make) continue;
      for (const Pattern& pattern : rule.patterns) {
        for (std::string& name : names_of(pattern)) names.insert(std::move(name));
      }
    }
    for (const std::string& name : names) {
      const std::string once = renamed(fused->second, name);
      EXPECT_EQ(renamed(fused->second, once), once) << family.file << ": " << name;
    }
    for (const char* name : {"norm.weight", "model.norm.weight", "language_model.norm.weight",
                             "model.language_model.norm.weight"}) {
      const std::string once = renamed(fused->second, name);
      EXPECT_TRUE(once == "norm.weight" || once.ends_with(".norm.weight"))
          << family.file << ": " << name << " became " << once;
    }
  }
}

/// Four experts of a layer under the names that the linear layout gives.
std::vector<TensorSpec> linear_experts(const ModelFamily& family) {
  std::vector<TensorSpec> tensors;
  std::set<std::string> seen;
  for (const Rule& rule : family.layouts.at("linear").rules) {
    for (const Template& given : rule.give) {
      const std::size_t key = given.text().find("{e}");
      if (key == std::string::npos || !seen.insert(given.text()).second) continue;
      for (int expert = 0; expert < 4; ++expert) {
        std::string name = given.text();
        name.replace(key, 3, std::to_string(expert));
        name.replace(0, 3, "model.layers.3.");  // {p}
        const bool is_down = name.find("down_proj") != name.npos ||
                             name.find(".w2.") != name.npos || name.find(".fc2.") != name.npos;
        std::vector<std::int64_t> shape =
            is_down ? std::vector<std::int64_t>{6, 4} : std::vector<std::int64_t>{4, 6};
        if (name.ends_with(".bias")) shape.pop_back();
        tensors.push_back({std::move(name), DType::BF16, shape});
      }
    }
  }
  return tensors;
}

TEST(BuiltInRecipes, MakeEveryLayoutOfEveryOther) {
  const auto config = ConfigNumbers::parse(
      R"({"num_local_experts": 4, "n_routed_experts": 4, "num_experts": 4, "moe_num_experts": 4,
          "hidden_size": 6, "moe_intermediate_size": 4})",
      "config.json");
  for (const auto& known : built_in_recipes().families) {
    const ModelFamily& family = known->rules.get();
    if (family.layouts.empty()) continue;
    SCOPED_TRACE(family.file);
    ModelCatalog model;
    const std::vector<TensorSpec> experts = linear_experts(family);
    ASSERT_GE(experts.size(), 8u);
    model.shard("m.safetensors", experts);
    const auto catalog = model.build();
    MemorySource& source = model.source();
    std::vector<std::byte> bytes(1 << 16);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<std::byte>(i * 37 + i / 256);
    source.change(*source.find("m.safetensors"), bytes);
    TensorList stored;
    for (TensorId id = 0; id < experts.size(); ++id) {
      stored.tensors.push_back(
          {.name = catalog->tensor(id).name, .expr = TensorExpr::stored(*catalog, id), .shard = 0});
    }
    const auto content_of = [&](const TensorList& list) {
      std::map<std::string, std::vector<std::byte>> content;
      for (const ModelTensor& tensor : list.tensors) {
        // What stands before is renamed by some layouts, and by none back.
        const std::size_t layer = tensor.name.find("layers.3.");
        content[std::string(tensor.name.substr(layer))] =
            naive_tensor(*catalog, source, tensor.expr).value();
      }
      return content;
    };
    const auto laid_out = [&](const std::string& layout, const TensorList& list) {
      auto made = apply_rules(family.layouts.at(layout), *config, list);
      EXPECT_TRUE(made) << layout << ": " << (made ? "" : made.error().message());
      return std::move(made).value_or(TensorList());  // names stay where they are
    };
    const TensorList linear = laid_out("linear", stored);
    EXPECT_EQ(linear.tensors.size(), experts.size());
    for (const auto& [first, first_rules] : family.layouts) {
      const TensorList made = laid_out(first, stored);
      for (const auto& [second, second_rules] : family.layouts) {
        SCOPED_TRACE(first + " to " + second);
        const TensorList again = laid_out(second, made);
        EXPECT_EQ(content_of(again), content_of(laid_out(second, stored)));
        EXPECT_EQ(content_of(laid_out("linear", again)), content_of(linear));
      }
    }
  }
}

TEST(BuiltInRecipes, LeaveExpertsThatAreLinearAsTheHubNamesThem) {
  for (const auto& [family, name] : std::vector<std::pair<std::string, std::string>>{
           {"deepseek_v4", "layers.3.ffn.experts.0.w1.weight"},
           {"kimi_linear", "model.layers.3.block_sparse_moe.experts.0.w1.weight"},
           {"minimax_m3_vl", "language_model.model.layers.3.block_sparse_moe.experts.0.w1.weight"},
           {"mistral_large4", "layers.3.experts.0.w1.weight"}}) {
    ModelCatalog model;
    model.shard("m.safetensors", {{name, DType::BF16, {2, 2}}});
    const auto catalog = model.build();
    TensorList list;
    list.tensors.push_back({.name = name, .expr = TensorExpr::stored(*catalog, 0), .shard = 0});
    const auto config =
        ConfigNumbers::parse(fmt::format(R"({{"model_type": "{}"}})", family), "config.json");
    const ModelFamily* const found = built_in_recipes().find_layouts(*config);
    ASSERT_NE(found, nullptr) << family;
    const auto made = apply_rules(found->layouts.at("linear"), *config, std::move(list));
    ASSERT_TRUE(made) << made.error().message();
    ASSERT_EQ(made->tensors.size(), 1u);
    EXPECT_EQ(made->tensors[0].name, name);
  }
}

}  // namespace
}  // namespace ckfs
