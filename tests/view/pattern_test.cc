#include "view/recipes/pattern.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <regex>

#include "support/cost_limit.h"
#include "support/heap_meter.h"

namespace ckfs {
namespace {

using testing::HasSubstr;

/// "a=1 b=x" of the captures of the name, or "-".
std::string matched(std::string_view pattern, std::string_view name) {
  CaptureNames names;
  const auto parsed = Pattern::parse(pattern, names);
  if (!parsed) return parsed.error().message();
  Captured captured(names.size());
  if (!parsed->match(name, captured)) return "-";
  EXPECT_EQ(parsed->fill(captured), name);
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += fmt::format("{}{}={}", i > 0 ? " " : "", names[i], captured[i]);
  }
  return text;
}

TEST(Pattern, TakesNumbersPartsAnyTextAndWords) {
  EXPECT_EQ(matched("layers.{n}.w", "layers.12.w"), "n=12");
  EXPECT_EQ(matched("layers.{n}.w", "layers.012.w"), "-");
  EXPECT_EQ(matched("layers.{n}.w", "layers.0.w"), "n=0");
  EXPECT_EQ(matched("layers.{n}.w", "layers.1234567890.w"), "-");
  EXPECT_EQ(matched("layers.{n}.w", "layers.x.w"), "-");
  EXPECT_EQ(matched("layers.{n}.w", "layers.1.w.w"), "-");
  EXPECT_EQ(matched("{x:*}.w", "a.w"), "x=a");
  EXPECT_EQ(matched("{x:*}.w", "a.b.w"), "-");
  EXPECT_EQ(matched("{x:*}w", "w"), "-");
  EXPECT_EQ(matched("{x:**}.w", "a.b.w"), "x=a.b");
  EXPECT_EQ(matched("{x:**}w", "w"), "x=");
  EXPECT_EQ(matched("{x:gate|up}_proj", "up_proj"), "x=up");
  EXPECT_EQ(matched("{x:gate|up}_proj", "down_proj"), "-");
  EXPECT_EQ(matched("{x:a|ab}c", "abc"), "x=ab");
}

TEST(Pattern, GivesAnyTextTheLeastThatFits) {
  EXPECT_EQ(matched("{a:**}.x.{b:**}", "p.x.q.x.r"), "a=p b=q.x.r");
  EXPECT_EQ(matched("{a:**}.x.{n}", "p.x.q.x.3"), "a=p.x.q n=3");
  EXPECT_EQ(matched("{a:**}{b:**}", "pq"), "a= b=pq");
}

/// The same by the standard library, which tries the shortest texts first, too.
std::string matched_by_regex(const std::string& regex, const std::string& name) {
  std::smatch found;
  if (!std::regex_match(name, found, std::regex(regex))) return "-";
  std::string text;
  for (std::size_t i = 1; i < found.size(); ++i) {
    text +=
        fmt::format("{}{}={}", i > 1 ? " " : "", static_cast<char>('a' + i - 1), found[i].str());
  }
  return text;
}

TEST(Pattern, FitsWhatARegularExpressionFits) {
  // Each hole and the expression for it; {} is the capture's name.
  const std::vector<std::pair<std::string, std::string>> holes = {
      {"{{{}:**}}", "(.*?)"},
      {"{{{}:*}}", "([^.]+?)"},
      {"{{{}}}", "(0|[1-9][0-9]{0,8})(?![0-9])"},
      {"{{{}:x|xy}}", "(x|xy)"}};
  const std::vector<std::pair<std::string, std::string>> between = {
      {"", ""}, {".", "\\."}, {"x", "x"}, {"y.", "y\\."}};
  const std::string letters = "xy.1";
  std::mt19937 random(7);
  int fitted = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string pattern, regex;
    const std::size_t count = random() % 3 + 1;
    for (std::size_t k = 0; k <= count; ++k) {
      const auto& [literal, escaped] = between[random() % between.size()];
      pattern += literal;
      regex += escaped;
      if (k == count) break;
      const auto& [hole, expression] = holes[random() % holes.size()];
      pattern += fmt::format(fmt::runtime(hole), static_cast<char>('a' + k));
      regex += expression;
    }
    std::string name;
    for (std::size_t k = random() % 9; k > 0; --k) name += letters[random() % letters.size()];
    const std::string expected = matched_by_regex(regex, name);
    EXPECT_EQ(matched(pattern, name), expected) << pattern << " " << name;
    if (expected != "-") ++fitted;
  }
  EXPECT_GT(fitted, 50);
}

TEST(Pattern, TriesNothingTwice) {
  // Of each three texts one may end anywhere before the two others.
  for (const std::string letter : {"x", "x."}) {
    std::string name;
    while (name.size() < 64'000) name += letter;
    const CostLimit limit(name.size());
    EXPECT_EQ(matched("{a:**}x{b:**}x{c:**}x{n}y", name + "y"), "-");
    EXPECT_EQ(matched("{a:**}x{b:*}x{c:*}x{n}y", name + "y"), "-");
    EXPECT_EQ(matched("{a:**}{b:**}{c:**}{n}", name), "-");
  }
}

TEST(Pattern, RefusesWhatIsNoPattern) {
  EXPECT_THAT(matched("{a", "x"), HasSubstr("braces do not match"));
  EXPECT_THAT(matched("a}", "x"), HasSubstr("braces do not match"));
  EXPECT_THAT(matched("{{a}}", "x"), HasSubstr("braces do not match"));
  EXPECT_THAT(matched("{1}", "x"), HasSubstr("is not the name of a capture"));
  EXPECT_THAT(matched("{a}{a}", "x"), HasSubstr("comes twice"));
  EXPECT_THAT(matched("{a:**}{b:**}{c:**}{d:**}", "x"), HasSubstr("more than 3 captures that"));
  // Parts count where something other than a dot may end them.
  EXPECT_THAT(matched("{a:*}_{b:*}_{c:*}_{d:*}_{e:*}", "x"), HasSubstr("more than 3 captures"));
  // Words count where one begins with another: 100 of nothing each would take 100^8 steps.
  EXPECT_THAT(matched("{a:x|xy}{b:x|xy}{c:|z}{d:q|q}{e:z}", "x"),
              HasSubstr("more than 3 captures"));
  EXPECT_EQ(matched("{a:x|xy}{b:x|xy}{c:|z}{d:p|q}{e:|r}", "xyxyq"), "a=xy b=xy c= d=q e=");
  EXPECT_EQ(matched("{a:*}.{b:*}_.{c:*}.{d:*}.{e:*}", "p.q_.r.s.t"), "a=p b=q c=r d=s e=t");
}

}  // namespace
}  // namespace ckfs
