#include "format/module_pattern.h"

#include <ctime>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>

#include "support/sanitized.h"

namespace ckfs {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  const ModulePattern parsed(pattern);
  EXPECT_TRUE(parsed.valid()) << pattern;
  return parsed.matches(name);
}

TEST(ModulePattern, MatchesAsPythonDoesFromTheBeginning) {
  EXPECT_TRUE(matches(".*self_attn.*", "model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(matches("model", "model.layers.0"));
  EXPECT_FALSE(matches("layers", "model.layers.0"));
  EXPECT_FALSE(matches("model$", "model.layers.0"));
  EXPECT_TRUE(
      matches(R"(.*mlp\.(gate|up|gate_up|down)_proj.*)", "model.layers.0.mlp.gate_up_proj"));
  EXPECT_FALSE(matches(R"(.*mlp\.(gate|up|gate_up|down)_proj.*)", "model.layers.0.mlp.gate"));
  EXPECT_TRUE(matches(R"(model\.layers\.\d+\.(?!mlp)\w+$)", "model.layers.12.norm"));
  EXPECT_FALSE(matches(R"(model\.layers\.\d+\.(?!mlp)\w+$)", "model.layers.12.mlp"));
  EXPECT_TRUE(matches(R"(a[^.\]x-z]{2,3}?b+$)", "aqqbb"));
  EXPECT_FALSE(matches(R"(a[^.\]x-z]{2,3}?b+$)", "aqxbb"));
  EXPECT_TRUE(matches("(?P<x>a|b)*(?=c)", "ababc"));
  EXPECT_TRUE(matches("(a?)*", ""));
  EXPECT_TRUE(matches(R"(\bx\b)", "x.y"));
}

TEST(ModulePattern, ReadsBracketsAndCountsAsPython) {
  EXPECT_TRUE(matches(R"([\.-]x)", "-x"));  // no range: nothing follows
  EXPECT_FALSE(ModulePattern(R"([\.-_]x)").valid());
  EXPECT_TRUE(matches("xa{,3}y", "xaay"));
  EXPECT_TRUE(matches("xa{,3}y", "xy"));
  EXPECT_FALSE(matches("xa{,3}y", "xaaaay"));
}

TEST(ModulePattern, IsNotValidWhereItCannotBeRead) {
  for (const std::string pattern : {"(", ")", "a**", "*", "[a", R"(\)", R"(\1)", "(?<=a)", "a{3,2}",
                                    "a{9999}", "(?P<x", "[b-a]"}) {
    EXPECT_FALSE(ModulePattern(pattern).valid()) << pattern;
    EXPECT_FALSE(ModulePattern(pattern).matches("a")) << pattern;
  }
  EXPECT_FALSE(ModulePattern(std::string(100, '(')).valid());
  EXPECT_FALSE(ModulePattern(std::string(10000, 'a')).valid());
}

TEST(ModulePattern, GivesUpInBoundedTime) {
  EXPECT_FALSE(matches("(a*)*(a*)*(a|aa)+b", std::string(200, 'a')));
  EXPECT_FALSE(matches("(.|.)*x", std::string(10000, 'a')));
}

TEST(ModuleTargets, PreferNamesToPatternsToClasses) {
  QuantizationConfig config;
  config.groups = {{"classes", {"Linear"}, "", {}},
                   {"patterns", {"re:.*down.*"}, "", {}},
                   {"names", {"a.down", "c"}, "", {}}};
  config.ignore = {"re:.*q$"};
  ModuleTargets targets(config);
  EXPECT_EQ(targets.find("a.up")->name, "classes");
  EXPECT_EQ(targets.find("b.down")->name, "patterns");
  EXPECT_EQ(targets.find("a.down")->name, "names");
  using Call = ModuleTargets::Call;
  EXPECT_EQ(targets.calls_quantized("a.down"), Call::Name);
  EXPECT_EQ(targets.calls_quantized("b.down"), Call::Pattern);
  EXPECT_EQ(targets.calls_quantized("b.down.q"), Call::None);
  EXPECT_EQ(targets.calls_quantized("b.up"), Call::None);
  targets.saw("b.down");
  EXPECT_THAT(targets.without_match(), testing::ElementsAre("a.down", "c"));
}

TEST(ModuleTargets, OfEqualNamesTheFirstCounts) {
  QuantizationConfig config;
  config.groups = {{"first", {"a", "b", "b"}, "", {}}, {"second", {"a", "b"}, "", {}}};
  ModuleTargets targets(config);
  EXPECT_EQ(targets.find("a")->name, "first");
  targets.saw("a");
  EXPECT_THAT(targets.without_match(), testing::ElementsAre("b"));
}

// As ModelOpt's: all experts of a layer by the name of what they are in.
TEST(ModuleTargets, ANameIsThatOfAllThatIsInIt) {
  QuantizationConfig config;
  config.groups = {{"layer", {"l.0"}, "", {}}, {"experts", {"l.0.mlp.experts"}, "", {}}};
  ModuleTargets targets(config);
  EXPECT_EQ(targets.find("l.0.mlp.experts.17.up")->name, "experts");
  EXPECT_EQ(targets.find("l.0.mlp.experts_too.17.up")->name, "layer");
  EXPECT_EQ(targets.find("l.01.mlp"), nullptr);
  EXPECT_EQ(targets.calls_quantized("l.0.mlp.norm"), ModuleTargets::Call::None);
  targets.saw("l.0.mlp.experts.17.up");
  EXPECT_THAT(targets.without_match(), testing::ElementsAre("l.0"));
}

TEST(ModuleTargets, PatternsThatAreTooManyCostNothing) {
  QuantizationConfig config;
  config.groups.push_back({});
  config.groups[0].targets.assign(60'000, "re:x");
  ModuleTargets targets(config, 1 << 20);
  ASSERT_TRUE(targets.check());
  const std::clock_t begin = std::clock();
  for (int i = 0; i < 100'000; ++i) {
    (void)targets.find("y");
    targets.saw("y");
    (void)targets.calls_quantized("y");
  }
  EXPECT_LT(std::clock() - begin, (kSanitized ? 30 : 3) * CLOCKS_PER_SEC);
  EXPECT_FALSE(targets.check());
}

TEST(ModuleTargets, NamesOfManyPartsCostABoundedNumberOfSteps) {
  QuantizationConfig config;
  config.groups.push_back({});
  const std::string dots(65'000, '.');
  for (std::size_t i = 0; i < 60; ++i) {
    config.groups[0].targets.push_back(dots.substr(i * 1000) + "x");
  }
  ModuleTargets targets(config);
  const std::clock_t begin = std::clock();
  for (int i = 0; i < 1500; ++i) {
    EXPECT_EQ(targets.find(dots), nullptr);
    targets.saw(dots);
  }
  EXPECT_LT(std::clock() - begin, (kSanitized ? 60 : 10) * CLOCKS_PER_SEC);
  EXPECT_FALSE(targets.check());
}

TEST(ModuleTargets, PatternsThatCannotBeReadCostNothing) {
  QuantizationConfig config;
  config.groups.push_back({});
  config.groups[0].targets.assign(60'000, "re:(");
  ModuleTargets targets(config);
  const std::clock_t begin = std::clock();
  for (int i = 0; i < 100'000; ++i) {
    EXPECT_EQ(targets.find("y"), nullptr);
    targets.saw("y");
  }
  EXPECT_LT(std::clock() - begin, (kSanitized ? 30 : 3) * CLOCKS_PER_SEC);
  EXPECT_TRUE(targets.check());
  EXPECT_TRUE(targets.without_match().empty());
}

TEST(ModuleTargets, PatternsCostABoundedNumberOfSteps) {
  QuantizationConfig config;
  config.groups.push_back({});
  for (int i = 0; i < 2000; ++i)
    config.groups[0].targets.push_back("re:(a|aa)+(a|aa)+x" + std::to_string(i));
  ModuleTargets targets(config, 1 << 20);
  const std::string module(40, 'a');
  for (int i = 0; i < 100 && targets.check(); ++i) (void)targets.find(module);
  const Result<void> checked = targets.check();
  ASSERT_FALSE(checked);
  EXPECT_NE(checked.error().message().find("steps for the modules here"), std::string::npos);
}

// Of many folders each has a configuration.
TEST(ModuleTargets, StepsOfOtherConfigurationsCount) {
  QuantizationConfig config;
  config.groups = {{"", {"re:(a|aa)+x"}, "", {}}};
  ModuleTargets first(config, 1 << 10);
  while (first.check()) (void)first.find(std::string(40, 'a'));
  EXPECT_GE(first.steps(), std::size_t{1} << 10);
  ModuleTargets second(config, 1 << 10, first.steps());
  EXPECT_TRUE(second.check());  // nothing was asked
  EXPECT_EQ(second.find("aax"), nullptr);
  EXPECT_FALSE(second.check());
  const QuantizationConfig plain;
  ModuleTargets third(plain, 1 << 10, first.steps());
  EXPECT_EQ(third.find("aax"), nullptr);
  EXPECT_TRUE(third.check());
}

TEST(ModuleTargets, AStepOfAnyKindIsAFewNanoseconds) {
  std::string module;
  for (int i = 0; i < 100; ++i) module += "a.";
  for (const std::string& pattern :
       {std::string(R"(re:(a\b\b\b\b\b\b\b\b\b\.\b\b\b\b\b\b\b\b\b)*x)"),
        "re:(a|" + std::string(4000, '|') + "\\.)*x"}) {
    QuantizationConfig config;
    config.groups = {{"", {pattern}, "", {}}};
    ModuleTargets targets(config, 1 << 23);
    const std::clock_t begin = std::clock();
    while (targets.check()) (void)targets.find(module);
    EXPECT_LT(std::clock() - begin, (kSanitized ? 30 : 1) * CLOCKS_PER_SEC)
        << pattern.substr(0, 40);
  }
}

TEST(ModuleTargets, PatternsHaveABoundedLength) {
  QuantizationConfig config;
  config.groups.push_back({});
  for (int i = 0; i < 100; ++i) config.groups[0].targets.push_back("re:" + std::string(4000, 'a'));
  const ModuleTargets targets(config);
  const Result<void> checked = targets.check();
  ASSERT_FALSE(checked);
  EXPECT_NE(checked.error().message().find("bytes of patterns (limit 262144)"), std::string::npos);
}

}  // namespace
}  // namespace ckfs
