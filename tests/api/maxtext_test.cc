// The arrays of MaxText's own converters (tests/data/maxtext) against the views that promise them,
// array by array. The views are packed as safetensors here: what an Orbax item does to arrays is
// tested with real tools.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <tuple>

#include "api/small_reader.h"
#include "chunks/chunk_source.h"
#include "container/view_files.h"
#include "engine/engine.h"
#include "source/open_checkpoint.h"
#include "support/temporary_directory.h"
#include "view/maxtext_tree.h"
#include "view/recipes/recipe.h"

namespace ckfs {
namespace {

const std::filesystem::path kData = CKFS_TEST_DATA "/maxtext";

struct Case {
  std::string source, expected, view, family;
  std::string tree;  // the arrays that are the source; empty: the Hugging Face directory is
  bool nan = false;  // its bits may differ

  friend void PrintTo(const Case& one, std::ostream* out) {
    *out << one.source << "/" << one.expected << ": " << one.view;
    if (!one.tree.empty()) *out << " of " << one.tree;
  }
};

std::vector<Case> cases() {
  std::vector<Case> found;
  const auto file = nlohmann::json::parse(read_text(kData / "cases.json"));
  for (const char* list : {"cases", "trees"}) {
    for (const auto& item : file[list]) {
      found.push_back({item["source"], item["expected"], item["view"], item.value("family", ""),
                       item.value("tree", ""), item.value("nan", false)});
    }
  }
  return found;
}

/// The case's source: a directory; of a tree the item that MaxText wrote, or its arrays in
/// `directory` where that item is not here.
Result<std::shared_ptr<const Catalog>> open_source(const Case& test, SourceFiles& files,
                                                   const TemporaryDirectory& directory) {
  const std::filesystem::path source = kData / test.source / "source";
  if (test.tree.empty()) return open_checkpoint(source, files, {});
  const std::filesystem::path expected = kData / test.source / "expected";
  const std::filesystem::path item = expected / test.tree / "0/items";
  if (is_directory(item)) {
    OpenCheckpointOptions options;
    options.config = source;
    return open_checkpoint(item, files, options);
  }
  copy_file(source / "config.json", directory / "config.json");
  copy_file(expected / (test.tree + ".safetensors"), directory / "model.safetensors");
  return open_checkpoint(directory.path(), files, {});
}

/// All tensors of a view, by the engine.
Result<std::map<std::string, PlainTensor>> arrays(const Case& test) {
  CKFS_TRY(const auto files, LocalFiles::create({.engine = IoEngine::Pread}));
  const TemporaryDirectory directory;
  CKFS_TRY(const auto catalog, open_source(test, *files, directory));
  Recipes recipes = built_in_recipes();
  recipes.family = test.family;
  CKFS_TRY(const ViewSpec spec, parse_view_spec(test.view));
  CKFS_TRY(const auto view, define_view(catalog, spec, recipes));
  auto packed = std::make_shared<Definition>(*view);
  packed->packaging = {.container = ContainerKind::Safetensors, .max_shard = 1 << 30};
  CKFS_TRY(const auto layouts, ViewFiles::create(packed, *files));
  const auto pool = BufferPool::create(64 << 20);
  ChunkSource source(*files, catalog->chunks(), pool);
  Engine engine(catalog, source, pool, {});
  std::map<std::string, PlainTensor> tensors;
  for (const std::size_t file : layouts->tensor_files()) {
    const auto layout = layouts->layout(file);
    std::string bytes(layout->size, '\0');
    const auto stream = engine.open_stream(layout);
    CKFS_TRY_VOID(
        engine.read(*stream, {0, bytes.size()}, std::as_writable_bytes(std::span(bytes))));
    add_tensors(bytes, tensors);
  }
  return tensors;
}

/// The bytes, those of every NaN the same.
std::string without_nans(const PlainTensor& tensor) {
  std::string bytes = tensor.bytes;
  const std::size_t size = element_bytes(tensor.dtype);
  for (std::size_t i = 0; i * size < bytes.size(); ++i) {
    if (std::isnan(element(tensor, i))) bytes.replace(i * size, size, size, '\x7f');
  }
  return bytes;
}

class MaxTextGolden : public testing::TestWithParam<Case> {};

TEST_P(MaxTextGolden, HasTheArraysOfTheTool) {
  const Case& test = GetParam();
  const auto got = arrays(test);
  ASSERT_TRUE(got) << got.error().message();
  std::map<std::string, PlainTensor> want;
  add_tensors(read_text(kData / test.source / "expected" / (test.expected + ".safetensors")), want);
  std::set<std::string> names, wanted;
  for (const auto& [name, tensor] : want) wanted.insert(name);
  for (const auto& [name, tensor] : *got) names.insert(name);
  EXPECT_EQ(names, wanted);
  for (const auto& [name, tensor] : *got) {
    const auto same = want.find(name);
    if (same == want.end()) continue;
    EXPECT_EQ(tensor.dtype, same->second.dtype) << name;
    EXPECT_EQ(tensor.shape, same->second.shape) << name;
    if (test.nan) {
      EXPECT_TRUE(without_nans(tensor) == without_nans(same->second)) << name;
    } else {
      EXPECT_TRUE(tensor.bytes == same->second.bytes) << name;
    }
  }
}

/// What was made in order to be listed is what is made when it is asked for.
TEST_P(MaxTextGolden, IsTheSameWhereItWasListed) {
  const Case& test = GetParam();
  const auto files = LocalFiles::create({.engine = IoEngine::Pread});
  ASSERT_TRUE(files);
  const TemporaryDirectory directory;
  const auto catalog = open_source(test, **files, directory);
  ASSERT_TRUE(catalog);
  Recipes recipes = built_in_recipes();
  recipes.family = test.family;
  const bool tree = is_maxtext_tree(**catalog);
  for (const ViewSummary& listed : list_views(*catalog, recipes, 0)) {  // by two threads
    const bool made = listed.obstacles.empty() && (listed.name == "megatron-torch-dist" ||
                                                   (listed.name.starts_with("maxtext-") && !tree));
    ASSERT_EQ(listed.definition != nullptr, made) << listed.name;
    if (!made) continue;
    const auto asked = define_view(*catalog, {listed.name, {}}, recipes);
    ASSERT_TRUE(asked);
    const Definition &a = *listed.definition, &b = **asked;
    EXPECT_EQ(a.spec.canonical(), listed.name);
    EXPECT_EQ(b.spec.canonical(), listed.name);
    EXPECT_EQ(a.packaging.container, b.packaging.container);
    EXPECT_EQ(a.packaging.orbax.directory, b.packaging.orbax.directory);
    ASSERT_EQ(a.tensors.size(), b.tensors.size());
    for (std::size_t i = 0; i < a.tensors.size(); ++i) {
      const ModelTensor &one = a.tensors[i], &other = b.tensors[i];
      EXPECT_EQ(one.name, other.name);
      EXPECT_EQ(one.expr.dtype(), other.expr.dtype()) << one.name;
      EXPECT_TRUE(std::ranges::equal(one.expr.shape(), other.expr.shape())) << one.name;
      EXPECT_TRUE(one.expr.boxes() == other.expr.boxes()) << one.name;
      EXPECT_EQ(one.exactness, other.exactness) << one.name;
      EXPECT_EQ(std::tuple(one.role, one.shard, one.split, one.same_as),
                std::tuple(other.role, other.shard, other.split, other.same_as))
          << one.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MaxTextGolden, testing::ValuesIn(cases()));

}  // namespace
}  // namespace ckfs
