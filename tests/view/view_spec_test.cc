#include <algorithm>
#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/size_text.h"
#include "view/view.h"
#include "view/view_table.h"

namespace ckfs {
namespace {

std::string canonical(std::string_view spelling) {
  const Result<ViewSpec> spec = parse_view_spec(spelling);
  return spec ? spec->canonical() : spec.error().message();
}

ErrorCode code(std::string_view spelling) {
  const Result<ViewSpec> spec = parse_view_spec(spelling);
  return spec ? ErrorCode::Internal : spec.error().code();
}

TEST(ParseSize, KnowsDecimalAndBinaryUnits) {
  EXPECT_EQ(parse_size("4096"), 4096u);
  EXPECT_EQ(parse_size("5GB"), 5'000'000'000u);
  EXPECT_EQ(parse_size("2MB"), 2'000'000u);
  EXPECT_EQ(parse_size("3KB"), 3'000u);
  EXPECT_EQ(parse_size("1KiB"), 1024u);
  EXPECT_EQ(parse_size("64MiB"), 67'108'864u);
  EXPECT_EQ(parse_size("2GiB"), 2'147'483'648u);
  EXPECT_EQ(parse_size("18446744073709551615"), ~std::uint64_t{0});
}

TEST(SizeText, IsTheShortestThatReadsAsTheSize) {
  EXPECT_EQ(size_text(std::uint64_t{1} << 30), "1GiB");
  EXPECT_EQ(size_text(1'000'000'000), "1GB");
  EXPECT_EQ(size_text(1'500'000'000), "1500MB");
  EXPECT_EQ(size_text(67'108'864), "64MiB");
  EXPECT_EQ(size_text(1025), "1025");
}

// As huggingface_hub's parse_size_to_int: int(float("0.29") * 10**9), any case.
TEST(ParseSize, KnowsWhatOtherToolsTake) {
  EXPECT_EQ(parse_size("1.5GB"), 1'500'000'000u);
  EXPECT_EQ(parse_size("0.5MB"), 500'000u);
  EXPECT_EQ(parse_size("500kb"), 500'000u);
  EXPECT_EQ(parse_size("1gib"), 1'073'741'824u);
  EXPECT_EQ(parse_size("0.29GB"), 290'000'000u);
  EXPECT_EQ(parse_size("1.0005KB"), 1000u);
  EXPECT_EQ(canonical("bf16-safetensors@max_shard=0.5MB"), "bf16-safetensors@max_shard=500KB");
}

TEST(ParseSize, RefusesWhatIsNoSize) {
  for (const char* text :
       {"", "GB", "-1", "+1", " 1", "1 GB", "1PB", "1.5", "1.GB", ".5GB", "1.5.5GB", "1.5e3GB",
        "0x10", "1G", "18446744073709551616", "20000000000GB", "20000000000.5GB", "1GBGB"}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size) << text;
    EXPECT_EQ(size.error().code(), ErrorCode::InvalidArgument) << text;
  }
}

TEST(ViewSpec, SpellsSizesInTheShortestWay) {
  EXPECT_EQ(canonical("bf16-safetensors@max_shard=5000000000"), "bf16-safetensors@max_shard=5GB");
  EXPECT_EQ(canonical("bf16-safetensors@max_shard=5000MB"), "bf16-safetensors@max_shard=5GB");
  EXPECT_EQ(canonical("bf16-safetensors@max_shard=67108864"), "bf16-safetensors@max_shard=64MiB");
  EXPECT_EQ(canonical("bf16-safetensors@max_shard=0100"), "bf16-safetensors@max_shard=100");
  EXPECT_EQ(canonical("bf16-safetensors@max_shard=1000"), "bf16-safetensors@max_shard=1KB");
  EXPECT_EQ(canonical("bf16-safetensors@max_shard=1025"), "bf16-safetensors@max_shard=1025");
}

TEST(ViewSpec, SortsKeysAndLeavesDefaultsOut) {
  EXPECT_EQ(canonical("bf16-safetensors@max_shard=1MB,experts=source,cast=all"),
            "bf16-safetensors@cast=all,max_shard=1MB");
  EXPECT_EQ(canonical("bf16-safetensors@experts=source"), "bf16-safetensors");
  EXPECT_EQ(canonical("fp32-consolidated@max_shard=5000MB,format=safetensors"),
            "fp32-consolidated");
  EXPECT_EQ(canonical("fp32-safetensors@max_shard=5GB"), "fp32-safetensors@max_shard=5GB");
}

TEST(ViewSpec, RefusesUnknownViews) {
  for (const char* spelling : {"", "@", "bf16", ".ckfs", "maxtext", "BF16-safetensors"}) {
    EXPECT_EQ(code(spelling), ErrorCode::NotFound) << spelling;
  }
}

TEST(ViewSpec, RefusesInOneLineWhateverTheName) {
  for (const char* spelling :
       {"no\nview", "bf16-safetensors@cast=a\nb", "bf16-safetensors@a\nb=c",
        "bf16-safetensors@a\nb", "source@\n\x1b[2J=1", "bf16-safetensors@max_shard=\n"}) {
    const std::string message = canonical(spelling);
    EXPECT_TRUE(std::ranges::none_of(message, [](char c) { return c >= 0 && c < ' '; })) << message;
  }
  EXPECT_EQ(parse_size("1\n").error().message().find('\n'), std::string::npos);
}

TEST(ViewSpec, NamesTheViewThatAMisspeltNameMayMean) {
  const auto begin = [](const char* spelling, const char* expected) {
    EXPECT_THAT(canonical(spelling), testing::StartsWith(expected));
    EXPECT_THAT(canonical(spelling), testing::EndsWith("megatron-torch-dist, dcp, orbax, source)"));
  };
  begin("bf16", "bf16: no such view (did you mean bf16-safetensors? there are: bf16-safetensors, ");
  begin("bf16-safetensor@cast=all",
        "bf16-safetensor@cast=all: no such view (did you mean bf16-safetensors? there are: ");
  begin("maxtext", "maxtext: no such view (did you mean maxtext-unscanned? there are: ");
  begin("gguf", "gguf: no such view (there are: bf16-safetensors, fp16-safetensors, ");
}

TEST(ViewSpec, HasHelpOnEveryViewAndParameter) {
  const std::vector<ViewHelp> views = help_on_views();
  ASSERT_EQ(views.size(), names_of_views().size());
  for (const ViewHelp& view : views) {
    EXPECT_FALSE(view.description.empty()) << view.name;
    for (const ViewParameterHelp& parameter : view.parameters) {
      EXPECT_FALSE(parameter.text.empty()) << view.name << "@" << parameter.key;
      EXPECT_FALSE(parameter.values.empty()) << view.name << "@" << parameter.key;
    }
  }
  EXPECT_EQ(views[0].parameters[0].key, "cast");
  EXPECT_EQ(views[0].parameters[0].values, "quantized|all");
}

TEST(ViewSpec, RefusesBadParameters) {
  EXPECT_EQ(canonical("fp16-safetensors@cast=all"),
            "fp16-safetensors@cast=all: fp16-safetensors has no parameter \"cast\" (there are: "
            "experts, max_shard, maxtext, unscaled)");
  EXPECT_EQ(canonical("safetensors@max_shards=5GB"),
            "safetensors@max_shards=5GB: safetensors has no parameter \"max_shards\" (did you mean "
            "max_shard? there are: max_shard)");
  EXPECT_EQ(canonical("bf16-safetensors@cast=some"),
            "bf16-safetensors@cast=some: cast \"some\" is not one of: quantized, all");
  EXPECT_EQ(canonical("fp32-consolidated@format=pt"),
            "fp32-consolidated@format=pt: format \"pt\" is not one of: safetensors, bin");
  EXPECT_EQ(canonical("bf16-safetensors@max_shard=0"),
            "bf16-safetensors@max_shard=0: max_shard 0 < 1");
  EXPECT_EQ(canonical("bf16-safetensors@max_shard=1KB,max_shard=1KB"),
            "bf16-safetensors@max_shard=1KB,max_shard=1KB: max_shard comes twice");
  EXPECT_EQ(canonical("fp32-consolidated@max_shard=5GB,max_shard=5GB"),
            "fp32-consolidated@max_shard=5GB,max_shard=5GB: max_shard comes twice");
  for (const char* spelling :
       {"bf16-safetensors@", "bf16-safetensors@cast", "bf16-safetensors@cast=",
        "bf16-safetensors@cast=all,", "bf16-safetensors@,cast=all", "bf16-safetensors@cast=a/b",
        "bf16-safetensors@max_shard=1@cast=all", "source@cast=all", "bf16-safetensors@=all"}) {
    EXPECT_EQ(code(spelling), ErrorCode::InvalidArgument) << spelling;
  }
}

RC_GTEST_PROP(ViewSpec, CanonicalNamesStandForThemselves, ()) {
  const auto bytes = *rc::gen::inRange<std::uint64_t>(1, std::uint64_t{1} << 62);
  const auto unit = *rc::gen::element<std::uint64_t>(1, 1000, 1 << 20, 1'000'000'000);
  const std::uint64_t size = bytes / unit * unit + unit;
  const auto first = parse_view_spec(fmt::format("bf16-safetensors@max_shard={}", size));
  RC_ASSERT(first.has_value());
  RC_ASSERT(parse_size(first->parameters.at("max_shard")) == size);
  RC_ASSERT(canonical(first->canonical()) == first->canonical());
}

TEST(ViewTable, NamesEachViewAndParameterOnce) {
  std::map<std::string_view, int> views;
  for (const ViewRow& row : view_table()) {
    EXPECT_EQ(++views[row.name], 1) << row.name;
    EXPECT_EQ(canonical(row.name), row.name);
    for (std::size_t i = 1; i < row.parameters.size(); ++i) {
      EXPECT_LT(row.parameters[i - 1].key, row.parameters[i].key);
    }
  }
}

}  // namespace
}  // namespace ckfs
