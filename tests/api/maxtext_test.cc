// The arrays of MaxText's own converters (tests/data/maxtext) against the views that promise them,
// array by array, by the reference model; so whatever packs them.
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "format/json_tree.h"
#include "source/open_checkpoint.h"
#include "support/naive_view.h"
#include "view/recipes/recipe.h"
#include "view/view.h"

namespace ckfs {
namespace {

const std::filesystem::path kData = CKFS_TEST_DATA "/maxtext";

struct Opened {
  std::unique_ptr<SourceFiles> files = SourceFiles::create({.engine = IoEngine::Pread}).value();
  std::shared_ptr<const Catalog> catalog;

  explicit Opened(const std::filesystem::path& path) {
    auto opened = open_checkpoint(path, *files, {});
    EXPECT_TRUE(opened) << opened.error().message();
    if (opened) catalog = *opened;
  }
};

std::vector<std::uint64_t> elements(const std::vector<std::byte>& bytes, DType dtype) {
  const auto size = static_cast<std::size_t>(bits(dtype)) / 8;
  std::vector<std::uint64_t> values(bytes.size() / size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::memcpy(&values[i], bytes.data() + i * size, size);
  }
  return values;
}

bool is_nan(std::uint64_t value, DType dtype) {
  switch (dtype) {
    case DType::BF16:
      return (value & 0x7fff) > 0x7f80;
    case DType::F16:
      return (value & 0x7fff) > 0x7c00;
    default:
      return dtype == DType::F32 && (value & 0x7fffffff) > 0x7f800000;
  }
}

struct Case {
  std::string source, expected, view, family;
  bool nan = false;  // its bits may differ

  friend void PrintTo(const Case& one, std::ostream* out) {
    *out << one.source << "/" << one.expected << ": " << one.view;
  }
};

std::vector<Case> cases() {
  std::ifstream file(kData / "cases.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const JsonNode root = parse_json_tree(text, "cases.json", JsonKeys::Unique).value();
  std::vector<Case> found;
  for (const JsonNode& item : root.find("cases")->items) {
    const auto word = [&](std::string_view key) {
      const JsonNode* node = item.find(key);
      return node == nullptr ? std::string() : node->text;
    };
    found.push_back({word("source"), word("expected"), word("view"), word("family"),
                     item.find("nan") != nullptr});
  }
  return found;
}

class MaxTextGolden : public testing::TestWithParam<Case> {};

TEST_P(MaxTextGolden, HasTheArraysOfTheTool) {
  const Case& test = GetParam();
  Opened source(kData / test.source / "source");
  Opened golden(kData / test.source / "expected" / (test.expected + ".safetensors"));
  ASSERT_TRUE(source.catalog && golden.catalog);
  Recipes recipes = built_in_recipes();
  recipes.family = test.family;
  const auto view = define_view(source.catalog, parse_view_spec(test.view).value(), recipes);
  ASSERT_TRUE(view) << view.error().message();

  std::set<std::string_view> names;
  for (const ModelTensor& tensor : (*view)->tensors) {
    SCOPED_TRACE(tensor.name);
    names.insert(tensor.name);
    const auto id = golden.catalog->find(tensor.name);
    ASSERT_TRUE(id.has_value());
    const TensorExpr want = TensorExpr::stored(*golden.catalog, *id);
    EXPECT_EQ(name(tensor.expr.dtype()), name(want.dtype()));
    EXPECT_THAT(tensor.expr.shape(), testing::ElementsAreArray(want.shape()));
    const auto got_bytes = naive_tensor(*source.catalog, *source.files, tensor.expr);
    const auto want_bytes = naive_tensor(*golden.catalog, *golden.files, want);
    ASSERT_TRUE(got_bytes && want_bytes);
    ASSERT_EQ(got_bytes->size(), want_bytes->size());
    const auto have = elements(*got_bytes, want.dtype());
    const auto wanted = elements(*want_bytes, want.dtype());
    std::size_t differ = 0;
    for (std::size_t i = 0; i < have.size(); ++i) {
      if (have[i] == wanted[i]) continue;
      if (test.nan && is_nan(have[i], want.dtype()) && is_nan(wanted[i], want.dtype())) continue;
      if (differ++ == 0) {
        ADD_FAILURE() << fmt::format("element {}: {:x}, not {:x}", i, have[i], wanted[i]);
      }
    }
    EXPECT_EQ(differ, 0u);
  }
  EXPECT_EQ(names.size(), golden.catalog->tensors().size());
}

INSTANTIATE_TEST_SUITE_P(All, MaxTextGolden, testing::ValuesIn(cases()));

}  // namespace
}  // namespace ckfs
