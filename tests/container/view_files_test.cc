#include "container/view_files.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <thread>

#include "container/nested_names.h"
#include "support/heap_meter.h"
#include "support/model_catalog.h"

namespace ckfs {
namespace {

using testing::ElementsAre;

ModelCatalog small_model() {
  ModelCatalog model;
  model.shard("model-2.safetensors", {{"a", DType::F32, {2}}});
  model.shard("model-10.safetensors", {{"b", DType::BF16, {2}}, {"c", DType::BF16, {1}}});
  model.config("{}");
  model.side_file("a/b.txt", "text");
  model.side_file("a.txt", "");
  return model;
}

std::unique_ptr<const ViewFiles> files_of(ModelCatalog& model, std::string_view view) {
  auto files = ViewFiles::create(define(model.build(), view), model.source());
  EXPECT_TRUE(files) << files.error().message();
  return *std::move(files);
}

TEST(ViewFiles, AreListedByPath) {
  ModelCatalog model = small_model();
  const auto files = files_of(model, "bf16-safetensors");
  std::vector<std::string_view> paths;
  for (std::size_t i = 0; i < files->size(); ++i) {
    paths.push_back(files->path(i));
    EXPECT_EQ(files->find(paths.back()), i);
  }
  EXPECT_THAT(paths, ElementsAre("a.txt", "a/b.txt", "config.json", "model-10.safetensors",
                                 "model-2.safetensors", "model.safetensors.index.json"));
  for (const char* absent : {"", "a", "a.tx", "a.txt0", "zzz"}) {
    EXPECT_EQ(files->find(absent), std::nullopt) << absent;
  }
  EXPECT_EQ(files->facts(1).size, 4U);
  EXPECT_EQ(files->facts(3).tensors, 2U);
  EXPECT_EQ(files->facts(3).exactness, Exactness::BitExact);
  EXPECT_EQ(files->facts(4).exactness, Exactness::Lossy);
  EXPECT_THAT(files->tensor_files(), ElementsAre(3, 4));
  EXPECT_THAT(files->tensors(3), ElementsAre(0, 1));
}

TEST(NestedNames, AreFoundWhateverStandsBetween) {
  using Names = std::vector<std::string_view>;
  const auto found = [](Names names) {
    std::ranges::sort(names);
    const auto nested = find_nested(names, '/');
    return nested ? fmt::format("{} {}", nested->first, nested->second) : std::string();
  };
  EXPECT_EQ(found({}), "");
  EXPECT_EQ(found({"a", "a-", "a-b", "ab", "b/a", "b/ab"}), "");
  EXPECT_EQ(found({"a", "a-", "a-b", "a.c", "a/x", "ab"}), "a a/x");
  EXPECT_EQ(found({"a/b", "a/b-c", "a/b-d/e", "a/b/c/d", "z"}), "a/b a/b/c/d");
  EXPECT_EQ(found({"a", "aa", "aaa", "aaa/", "b"}), "aaa aaa/");
}

TEST(ViewFiles, RefuseAFolderWhereAFileMustBe) {
  ModelCatalog model = small_model();
  model.side_file("model.safetensors.index.json-old", "x");
  model.side_file("model.safetensors.index.json/deep/notes.txt", "x");
  const auto catalog = model.build();
  const auto refused = ViewFiles::create(define(catalog, "bf16-safetensors"), model.source());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(),
            "bf16-safetensors: \"model.safetensors.index.json\": a file and a folder of this name");
  EXPECT_TRUE(ViewFiles::create(define(catalog, "source"), model.source()));
}

TEST(ViewFiles, GiveOneLayoutOfAFileToAll) {
  ModelCatalog model = small_model();
  const auto files = files_of(model, "bf16-safetensors");
  const auto one = files->layout(3);
  EXPECT_EQ(files->layout(3), one);
  EXPECT_NE(files->layout(4)->serial, one->serial);
  EXPECT_EQ(files->lay_out(3).serial, one->serial);
  EXPECT_EQ(one->path, "model-10.safetensors");
  EXPECT_EQ(one->size, files->facts(3).size);

  std::vector<std::shared_ptr<const FileLayout>> seen(8);
  std::vector<std::thread> threads;
  for (auto& slot : seen) threads.emplace_back([&] { slot = files->layout(5); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), 1U);
}

TEST(ViewFiles, HaveTheInodesOfEveryOtherHost) {
  // FNV-1a of "bf16-safetensors/config.json" and so on, computed apart.
  const auto inode = [](std::string_view view, std::string_view path) {
    ModelCatalog model;
    model.shard("model-1.safetensors", {{"b", DType::BF16, {3}}});
    model.shard("model-2.safetensors", {{"c", DType::F32, {2}}});
    model.config("{}");
    const auto files = files_of(model, view);
    return files->inode(files->find(path).value());
  };
  EXPECT_EQ(inode("bf16-safetensors@experts=source", "config.json"), 0x2cc3150fb4e15743u);
  EXPECT_EQ(inode("bf16-safetensors", "model-1.safetensors"), 0x39e5746bfc811151u);
  EXPECT_EQ(inode("bf16-safetensors@max_shard=1KB", "config.json"), 0x0d69c9377b372f01u);
}

TEST(ViewFiles, AreNeverTwoOfOneName) {
  ModelCatalog model = small_model();
  model.side_file("config.json", "{}");
  const auto files = ViewFiles::create(define(model.build(), "bf16-safetensors"), model.source());
  ASSERT_FALSE(files);
  EXPECT_EQ(files.error().message(), "bf16-safetensors: \"config.json\": two files of this name");
}

constexpr std::size_t kMany = 100'000;

/// `count` files of one tensor of one byte each.
std::shared_ptr<const Definition> many_tensors(std::size_t count, std::string_view view) {
  CatalogBuilder builder("torch_file");
  std::vector<TensorId> ids;
  const std::vector<std::int64_t> shape{1};
  const std::vector<Extent> extents{{0, 0, 1}};
  for (std::size_t i = 0; i < count; ++i) {
    const StorageId storage = builder.add_storage(DType::U8, 1, extents);
    ids.push_back(builder.add_tensor(fmt::format("tensor.{}", i), shape, storage));
  }
  builder.add_only_shard(std::move(ids));
  return define(std::move(builder).build(), view);
}

/// Bytes beside its path that `files` costs for each file.
double cost_of_a_file(const ViewFiles& files, std::size_t held) {
  std::size_t paths = 0;
  for (std::size_t i = 0; i < files.size(); ++i) paths += files.path(i).size();
  return static_cast<double>(held - paths) / static_cast<double>(files.size());
}

TEST(ViewFiles, CostAtMost150BytesAFileBesideItsPath) {
  for (const char* view : {"fp32-consolidated@max_shard=1",
                           "fp32-consolidated@format=bin,max_shard=1", "safetensors@max_shard=1"}) {
    MemorySource source;
    const auto definition = many_tensors(kMany, view);
    const std::size_t before = heap_meter::now;
    const auto files = ViewFiles::create(definition, source);
    ASSERT_TRUE(files) << files.error().message();
    ASSERT_EQ((*files)->size(), kMany + 1);  // and the index
    RecordProperty(view, fmt::format("{:.0f}", cost_of_a_file(**files, heap_meter::now - before)));
    EXPECT_LE(cost_of_a_file(**files, heap_meter::now - before), 150) << view;

    // Nor when each has been opened: but for the layouts that are kept.
    for (std::size_t i = 0; i < kMany; ++i) EXPECT_NE((*files)->layout(i), nullptr);
    const std::size_t held = heap_meter::now - before;
    EXPECT_LE(cost_of_a_file(**files, held - ViewFiles::kKeptLayouts * 3 / 2), 150) << view;
  }
}

TEST(ViewFiles, CostAtMost150BytesAFileOfTheSource) {
  ModelCatalog model;
  model.shard("model.safetensors", {{"a", DType::F32, {2}}});
  for (std::size_t i = 0; i < kMany; ++i) model.side_file(fmt::format("c/{}/{}", i % 300, i), "x");
  const auto catalog = model.build();
  for (const char* view : {"source", "bf16-safetensors"}) {
    const std::size_t before = heap_meter::now;
    const auto files = ViewFiles::create(define(catalog, view), model.source());
    ASSERT_TRUE(files) << files.error().message();
    ASSERT_EQ((*files)->size(), kMany + 1);
    RecordProperty(view, fmt::format("{:.0f}", cost_of_a_file(**files, heap_meter::now - before)));
    EXPECT_LE(cost_of_a_file(**files, heap_meter::now - before), 150) << view;
  }
}

TEST(ViewFiles, OfManyTensorsCostNoMoreThanTheirTable) {
  MemorySource source;
  const auto definition = many_tensors(kMany, "fp32-consolidated");
  const std::size_t before = heap_meter::now;
  const auto files = ViewFiles::create(definition, source);
  ASSERT_TRUE(files);
  EXPECT_LE(heap_meter::now - before, 8 * kMany);
  const auto layout = (*files)->layout(0);
  EXPECT_LE(heap_meter::now - before, 40 * kMany);
}

}  // namespace
}  // namespace ckfs
