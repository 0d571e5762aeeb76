#include "base/suggest.h"

#include <array>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace ckfs {
namespace {

constexpr std::array<std::string_view, 4> kVerbs{"mount", "umount", "inspect", "ls"};
constexpr std::array<std::string_view, 4> kViews{"bf16-safetensors", "safetensors",
                                                 "maxtext-unscanned", "maxtext-scanned"};

TEST(Suggest, FindsAWordWithOneWrongMissingAddedOrSwappedLetter) {
  EXPECT_EQ(closest("mout", kVerbs), "mount");
  EXPECT_EQ(closest("monut", kVerbs), "mount");
  EXPECT_EQ(closest("inspct", kVerbs), "inspect");
  EXPECT_EQ(closest("innspect", kVerbs), "inspect");
  EXPECT_EQ(closest("inspekt", kVerbs), "inspect");
  EXPECT_EQ(closest("bf16-safetensor", kViews), "bf16-safetensors");
  EXPECT_EQ(closest("bf16_safetensors", kViews), "bf16-safetensors");
}

TEST(Suggest, FindsANameThatWasCutShort) {
  EXPECT_EQ(closest("bf16", kViews), "bf16-safetensors");
  EXPECT_EQ(closest("maxtext", kViews), "maxtext-unscanned");
  EXPECT_EQ(closest("safetensors-bf16", kViews), "safetensors");
}

TEST(Suggest, GuessesNothingForAWordThatIsLikeNone) {
  EXPECT_EQ(closest("gguf", kViews), "");
  EXPECT_EQ(closest("", kVerbs), "");
  EXPECT_EQ(closest("xy", kVerbs), "");
  EXPECT_EQ(closest(std::string(100'000, 'm'), kVerbs), "");
  EXPECT_EQ(closest("mount", {}), "");
}

TEST(Suggest, EndsAMessageWithTheGuessAndTheList) {
  EXPECT_EQ(did_you_mean("mout", kVerbs),
            " (did you mean mount? there are: mount, umount, inspect, ls)");
  EXPECT_EQ(did_you_mean("gguf", std::span(kVerbs).first(2)), " (there are: mount, umount)");
  EXPECT_EQ(did_you_mean("gguf", {}), "");
}

TEST(Suggest, ListsTheFirstTwentyOfMany) {
  const std::vector<std::string_view> many(23, "tag");
  const std::string text = did_you_mean("x", many);
  EXPECT_TRUE(text.ends_with(", tag and 3 more)")) << text;
}

TEST(Suggest, ForgesNothingFromNamesOfASource) {
  constexpr std::array<std::string_view, 1> kNames{"a\nckfs: b"};
  EXPECT_EQ(did_you_mean("x", kNames).find('\n'), std::string::npos);
}

}  // namespace
}  // namespace ckfs
