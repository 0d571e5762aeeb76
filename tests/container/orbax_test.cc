// What only Orbax items have: names that are no paths, data files, keys.
#include "container/orbax.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>

#include "container/ocdbt_item.h"
#include "container/view_files.h"
#include "support/model_catalog.h"
#include "view/recipes/recipe.h"

namespace ckfs {
namespace {

using testing::HasSubstr;

/// Tensors of a model as an item.
struct Item {
  explicit Item(const std::vector<TensorSpec>& tensors) {
    model.shard("model.safetensors", tensors);
    definition->catalog = model.build();
    definition->spec.view = "item";
    definition->packaging.container = ContainerKind::Orbax;
    for (const TensorSpec& tensor : tensors) {
      const TensorId id = *definition->catalog->find(tensor.name);
      definition->names.push_back(tensor.name);
      definition->tensors.push_back(
          {.name = definition->names.back(), .expr = TensorExpr::stored(*definition->catalog, id)});
    }
  }

  OrbaxItem& orbax() const { return definition->packaging.orbax; }

  std::shared_ptr<const Container> container() const {
    auto made = make_orbax(definition);
    EXPECT_TRUE(made) << made.error().message();
    return made ? *std::move(made) : nullptr;
  }

  std::string error() const {
    const auto made = make_orbax(definition);
    return made ? std::string() : made.error().message();
  }

  ModelCatalog model;
  std::shared_ptr<Definition> definition = std::make_shared<Definition>();
};

std::vector<std::string> paths(const Container& container) {
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < container.size(); ++i) paths.push_back(container.path(i));
  return paths;
}

TEST(OrbaxItem, HasItsMarksInEachDirectoryAboveIt) {
  Item item({{"a", DType::BF16, {2}}});
  EXPECT_THAT(paths(*item.container()), testing::ElementsAre("d/00000", "d/nodes", "manifest.ocdbt",
                                                             "_METADATA", "commit_success.txt"));
  item.orbax().directory = "0/items/";
  EXPECT_THAT(paths(*item.container()),
              testing::ElementsAre("0/items/d/00000", "0/items/d/nodes", "0/items/manifest.ocdbt",
                                   "0/items/_METADATA", "0/items/commit_success.txt",
                                   "0/commit_success.txt"));
}

TEST(OrbaxItem, HasNoFileForWhatHasNoBytes) {
  Item item({{"a", DType::BF16, {0, 3}}});
  item.orbax().step = true;
  EXPECT_THAT(paths(*item.container()),
              testing::ElementsAre("d/nodes", "manifest.ocdbt", "_METADATA", "commit_success.txt"));
  EXPECT_THAT(item.container()->tensors(2), testing::ElementsAre(0));
}

TEST(OrbaxItem, RefusesWhatIsNoTree) {
  EXPECT_THAT(Item({{"a/b", DType::BF16, {2}}}).error(), HasSubstr("item: \"a/b\": a path with"));
  EXPECT_THAT(Item({{"a..b", DType::BF16, {2}}}).error(), HasSubstr("an empty part"));
  EXPECT_THAT(Item({{".a", DType::BF16, {2}}}).error(), HasSubstr("an empty part"));
  EXPECT_THAT(Item({{"a", DType::BF16, {2}}, {"a.b", DType::BF16, {2}}}).error(),
              HasSubstr("\"a.b\": below \"a\", which is a leaf"));
  EXPECT_EQ(Item({{"a-", DType::BF16, {2}}, {"a.b", DType::BF16, {2}}}).error(), "");
  Item item({{"step", DType::BF16, {2}}});
  item.orbax().step = true;
  EXPECT_THAT(item.error(), HasSubstr("two leaves of this name"));
  Item dicts({{"opt_state.a", DType::BF16, {2}}});
  dicts.orbax().empty_dicts = {"opt_state"};
  EXPECT_THAT(dicts.error(), HasSubstr("below \"opt_state\""));
  EXPECT_THAT(Item({}).error(), HasSubstr("an Orbax item without arrays"));
}

TEST(OrbaxItem, RefusesWhatNoArrayHolds) {
  EXPECT_THAT(Item({{"a", DType::F4, {2}}}).error(), HasSubstr("\"a\": zarr has a byte"));
  EXPECT_THAT(Item({{"a", DType::U8, std::vector<std::int64_t>(33, 1)}}).error(),
              HasSubstr("33 dimensions (limit 32)"));
  Item item({{"a", DType::BF16, {6}}});
  item.definition->splits = {{4}};
  item.definition->tensors[0].split = 0;
  EXPECT_THAT(item.error(), HasSubstr("shape [6]: dimension 0 in 4 equal parts"));
}

TEST(OrbaxItem, IsCutByNoAxesWhereItHasNoMesh) {
  const auto layout = add_recipe(built_in_recipes(), R"({"family": ["m"], "experts": {"fused": [
      {"take": "a", "give": "b", "axes": ["embed", "mlp"]}]}})",
                                 "f");
  ASSERT_TRUE(layout) << layout.error().message();
  for (const char* from : {"bf16-safetensors", "bf16-safetensors@experts=fused"}) {
    const auto recipes = add_recipe(*layout,
                                    fmt::format(R"({{"view": "v", "from": "{}",
        "container": "orbax", "rules": [
          {{"take": "{{x:a|b}}", "give": "c.mlp.up_proj.weight", "do": [{{"transpose": [1, 0]}}]}},
          {{"take": "{{p:**}}.weight", "give": "{{p}}.kernel", "axes": ["mlp", "embed"]}}]}})",
                                                from),
                                    "f");
    ASSERT_TRUE(recipes) << recipes.error().message();
    ModelCatalog model;
    model.config(R"({"model_type": "m"})").shard("model.safetensors", {{"a", DType::BF16, {2, 3}}});
    const auto definition = define_view(model.build(), {"v", {}}, *recipes);
    ASSERT_TRUE(definition) << definition.error().message();
    const auto made = make_orbax(*definition);
    EXPECT_TRUE(made) << made.error().message();
  }
}

TEST(OrbaxItem, RefusesNamesOfFilesAsDirectories) {
  for (const char* name : {"_METADATA", "checkpoint", "a.__lock"}) {
    Item item({{name, DType::BF16, {2}}});
    EXPECT_EQ(item.error(), "") << name;
    item.orbax().storage = ArrayStorage::Zarr3;
    EXPECT_THAT(item.error(), HasSubstr("a name that Orbax or TensorStore")) << name;
  }
  Item item({{std::string(256, 'a'), DType::BF16, {2}}});
  item.orbax().storage = ArrayStorage::Zarr2;
  EXPECT_THAT(item.error(), HasSubstr("256 bytes (limit 255)"));
}

/// Why a source's tree cannot be written with those arrays; empty: it can.
std::string tree_error(const std::vector<std::string>& names, std::string_view view) {
  std::vector<TensorSpec> tensors;
  for (const std::string& name : names) tensors.push_back({name, DType::BF16, {2}});
  ModelCatalog model;
  model.tree(tensors);
  const auto made = make_orbax(define(model.build(), view));
  return made ? std::string() : made.error().message();
}

TEST(OrbaxItem, RefusesArraysOfATreeThatLieInEachOther) {
  const std::string_view views[] = {"orbax", "orbax@storage=zarr2", "orbax@storage=zarr3"};
  for (const std::string_view view : views) {
    EXPECT_EQ(tree_error({"a-", "a", "a.d", "a0", "ab/c", "ab-/c"}, view), "");
    for (const char* between : {"a-", "a.", "a0", "a/e", "b"}) {
      EXPECT_THAT(tree_error({"a/d", between, "a"}, view),
                  HasSubstr("its chunks lie among those of \"a\""))
          << between;
    }
  }
}

TEST(OrbaxItem, RefusesDirectoriesOfATreeThatOrbaxOrTheDiskHasNoNameFor) {
  const std::string longest(255, 'x');
  EXPECT_EQ(tree_error({longest + "/" + longest + "/c"}, "orbax@storage=zarr2"), "");
  EXPECT_THAT(tree_error({"a/" + longest + "x/c"}, "orbax@storage=zarr2"),
              HasSubstr("256 bytes (limit 255)"));
  EXPECT_EQ(tree_error({"a/checkpoint"}, "orbax@storage=zarr3"), "");
  for (const char* name : {"checkpoint/a", "a.__lock/b", "_METADATA/a"}) {
    EXPECT_THAT(tree_error({name}, "orbax@storage=zarr3"), HasSubstr("a name that Orbax"));
    EXPECT_EQ(tree_error({name}, "orbax"), "");
  }
}

TEST(OrbaxItem, RefusesKeysThatNoReaderTakes) {
  // "/zarr.json", ten bytes, behind the name.
  EXPECT_EQ(tree_error({std::string(65'525, 'x')}, "orbax"), "");
  EXPECT_THAT(tree_error({std::string(65'526, 'x')}, "orbax"),
              HasSubstr("keys of 65536 bytes (limit 65535)"));
}

TEST(OrbaxItem, RefusesMoreChunksThanCanBeListed) {
  constexpr std::int64_t kMany = std::int64_t{1} << 24;
  const auto error = [](std::vector<std::int64_t> shape, std::vector<std::int64_t> split) {
    const Item item({{"a", DType::BF16, std::move(shape)}, {"b", DType::BF16, {1}}});
    item.orbax().max_chunk = std::uint64_t{1} << 31;
    item.definition->splits = {std::move(split)};
    item.definition->tensors[0].split = 0;
    return item.error();
  };
  EXPECT_THAT(error({kMany}, {kMany}), HasSubstr("16777217 chunks (limit 16777216"));
  EXPECT_THAT(error({1 << 20, 2, 1 << 29}, {1 << 20, 1, 1}),
              HasSubstr("more than 524288 data files"));
}

TEST(OrbaxItem, RefusesMoreKindsOfArraysThanItChoosesChunksFor) {
  std::vector<TensorSpec> tensors;
  for (std::int64_t i = 1; i <= 150; ++i) {
    tensors.push_back({fmt::format("a{:03}", i), DType::U8, {720720, 5040, 2 * i}});
  }
  EXPECT_THAT(Item(tensors).error(), HasSubstr("too many kinds of arrays up to it"));
  tensors.resize(5);
  EXPECT_EQ(Item(tensors).error(), "");
}

TEST(OrbaxItem, ClosesDataFilesAtTwoGibibytes) {
  // 56 MiB a chunk; one that is larger than a file; and small ones behind it.
  const Item item({{"a", DType::BF16, {100, 28672, 1024}},
                   {"b", DType::U8, {2147483659}},  // a prime number
                   {"c", DType::BF16, {3}},
                   {"d", DType::BF16, {5, 28672, 1024}}});
  const auto container = item.container();
  std::uint64_t total = 0;
  std::set<std::uint32_t> seen;
  std::size_t file = 0;
  for (; container->path(file).starts_with("d/0"); ++file) {
    SCOPED_TRACE(container->path(file));
    const FileLayout layout = container->lay_out(file);
    const FileFacts facts = container->facts(file);
    EXPECT_EQ(container->path(file), fmt::format("d/{:05}", file));
    EXPECT_TRUE(facts.size <= kDataFileBytes || layout.segments.size() == 1) << facts.size;
    std::uint64_t end = 0;
    for (std::size_t i = 0; i < layout.segments.size(); ++i) {
      EXPECT_EQ(layout.segments[i].begin, end);
      end += layout.chunks[i].expr.nbytes();
      seen.insert(layout.chunks[i].tensor);
    }
    EXPECT_EQ(end, facts.size);
    total += facts.size;
  }
  EXPECT_EQ(file, 5U);
  EXPECT_EQ(seen.size(), 4U);
  EXPECT_EQ(total, (105ULL * 28672 * 1024 + 3) * 2 + 2147483659ULL);
}

TEST(OrbaxItem, ClosesDataFilesThatAreManyChunks) {
  // A file's layout keeps an expression for each, beside the budget of memory.
  const Item item(
      {{"a", DType::BF16, {7}}, {"b", DType::BF16, {2, 40000}}, {"c", DType::BF16, {5}}});
  item.orbax().max_chunk = 2;
  const auto container = item.container();
  std::vector<std::uint64_t> chunks;
  for (std::size_t file = 0; container->path(file).starts_with("d/0"); ++file) {
    const FileLayout layout = container->lay_out(file);
    chunks.push_back(container->facts(file).size / 2);
    EXPECT_LE(layout.chunks.size(), kDataFileChunks);
    EXPECT_GT(layout.bytes(), 250 * layout.chunks.size());
  }
  EXPECT_THAT(chunks, testing::ElementsAre(kDataFileChunks, 80012 - kDataFileChunks));
  const auto first = [&](const Chunk& chunk) { return chunk.expr.box_list()[0].source_offset; };
  EXPECT_EQ(first(container->lay_out(1).chunks.front()),
            first(container->lay_out(0).chunks.back()) + 1);
}

TEST(OrbaxItem, HasFewBytesForManyChunks) {
  // 64,000 chunks: 16 leaves under a root.
  const Item item({{"a", DType::U8, {64000, 4096, 1024}}});
  item.definition->splits = {{64000, 1, 1}};
  item.definition->tensors[0].split = 0;
  const auto container = item.container();
  const std::size_t manifest = container->size() - 3;
  ASSERT_EQ(container->path(manifest), "manifest.ocdbt");
  EXPECT_LT(container->facts(manifest).size, 100U);
  const FileLayout nodes = container->lay_out(manifest - 1);
  ASSERT_EQ(nodes.literals.size(), 17U);
  EXPECT_LT(container->facts(manifest - 1).size, 64000U * 20);
  for (std::uint32_t i = 0; i < nodes.literals.size(); ++i) {
    EXPECT_EQ(nodes.render(i).size(), nodes.literals[i]);
  }
}

}  // namespace
}  // namespace ckfs
