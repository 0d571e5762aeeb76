// Which tensors share a file, and what the files are called.
#include "container/shards.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "container/safetensors.h"
#include "container/view_files.h"
#include "support/model_catalog.h"

namespace ckfs {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// "path: name name" of each file of tensors, in the container's order. Within a safetensors file,
/// which has an order of its own, names are in the view's.
std::vector<std::string> files(const std::shared_ptr<const Catalog>& catalog,
                               std::string_view view) {
  const auto definition = define(catalog, view);
  const MemorySource source;
  const auto files = ViewFiles::create(definition, source);
  EXPECT_TRUE(files) << files.error().message();
  std::vector<std::string> lines;
  for (const std::size_t file : (*files)->tensor_files()) {
    std::vector<std::uint32_t> ids = (*files)->tensors(file);
    if (definition->packaging.container == ContainerKind::Safetensors) std::ranges::sort(ids);
    std::vector<std::string_view> names;
    for (const std::uint32_t id : ids) names.push_back(definition->tensors[id].name);
    lines.push_back(fmt::format("{}: {}", (*files)->path(file), fmt::join(names, " ")));
  }
  return lines;
}

/// The paths of all files of a view, whatever they hold.
std::vector<std::string> paths(const std::shared_ptr<const Catalog>& catalog,
                               std::string_view view) {
  const MemorySource source;
  const auto files = ViewFiles::create(define(catalog, view), source);
  EXPECT_TRUE(files) << files.error().message();
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < (*files)->size(); ++i) paths.emplace_back((*files)->path(i));
  return paths;
}

/// Why a view that can be defined cannot be packed.
std::string refusal(const std::shared_ptr<const Catalog>& catalog, std::string_view view) {
  const MemorySource source;
  const auto files = ViewFiles::create(define(catalog, view), source);
  EXPECT_FALSE(files);
  return files ? "" : files.error().message();
}

/// As zero_to_fp32 orders it: buffers, frozen, trainable, other names.
ModelCatalog zero_state() {
  ModelCatalog model;
  model.state({{"steps", DType::I64, {1}, false, Role::Buffer},
               {"mean", DType::F64, {2}, false, Role::Buffer},
               {"base", DType::BF16, {4}, false, Role::Frozen},
               {"hidden", DType::F16, {4}, false, Role::FrozenModule},
               {"embed", DType::F32, {5}},
               {"small", DType::F32, {3}},
               {"head", DType::F32, {5}, false, Role::Weight, "embed"},
               {"base too", DType::BF16, {4}, false, Role::Frozen, "base"}});
  return model;
}

TEST(Shards, MirrorTheSourcesThatKeepATensor) {
  ModelCatalog model;
  model.shard("model-3.safetensors", {{"c", DType::BF16, {1}}});
  model.shard("model-1.safetensors", {{"b", DType::BF16, {1}}, {"a", DType::BF16, {1}}});
  model.shard("model-2.safetensors", {});
  const auto catalog = model.build();
  EXPECT_THAT(files(catalog, "bf16-safetensors"),
              ElementsAre("model-1.safetensors: b a", "model-3.safetensors: c"));
  EXPECT_THAT(paths(catalog, "bf16-safetensors"), Contains("model.safetensors.index.json"));
}

TEST(Shards, AreMirroredByTheShardThatATensorNamesAndNotByItsPlace) {
  ModelCatalog model;
  model.shard("model-1.safetensors", {{"a", DType::BF16, {1}}, {"b", DType::BF16, {1}}});
  model.shard("model-2.safetensors", {{"c", DType::BF16, {1}}});
  model.shard("model-3.safetensors", {{"d", DType::BF16, {1}}});
  Definition definition = *define(model.build(), "bf16-safetensors");
  std::swap(definition.tensors[0], definition.tensors[3]);  // d b c a
  EXPECT_THAT(mirror_shards(definition.tensors),
              ElementsAre(ElementsAre(1, 3), ElementsAre(2), ElementsAre(0)));
  definition.tensors.erase(definition.tensors.begin() + 2);  // d b a: nothing of the second shard
  EXPECT_THAT(mirror_shards(definition.tensors), ElementsAre(ElementsAre(1, 2), ElementsAre(0)));
}

TEST(Shards, NeedNoIndexWhereThereIsOneModelFile) {
  ModelCatalog model;
  model.shard("model.safetensors", {{"a", DType::BF16, {1}}});
  EXPECT_THAT(paths(model.build(), "bf16-safetensors"), ElementsAre("model.safetensors"));
  // A single file stays one, whatever its name; where the source has an index, so has the view.
  ModelCatalog other;
  other.shard("weights.safetensors", {{"a", DType::BF16, {1}}});
  EXPECT_THAT(paths(other.build(), "bf16-safetensors"), ElementsAre("weights.safetensors"));
  ModelCatalog indexed;
  indexed.shard("weights.safetensors", {{"a", DType::BF16, {1}}});
  indexed.index("model.safetensors.index.json");
  EXPECT_THAT(paths(indexed.build(), "bf16-safetensors"),
              ElementsAre("model.safetensors.index.json", "weights.safetensors"));
  // Which is called as there, unless it is that of a variant.
  for (const auto& [index, wanted] : std::vector<std::pair<std::string, std::string>>{
           {"diffusion_pytorch_model.safetensors.index.json",
            "diffusion_pytorch_model.safetensors.index.json"},
           {"model.fp16.safetensors.index.json", "model.safetensors.index.json"}}) {
    ModelCatalog component;
    component.shard("a-1.safetensors", {{"a", DType::BF16, {1}}});
    component.shard("a-2.safetensors", {{"b", DType::BF16, {1}}});
    component.index(index);
    EXPECT_THAT(paths(component.build(), "bf16-safetensors"),
                ElementsAre("a-1.safetensors", "a-2.safetensors", wanted));
  }
  ModelCatalog rest;
  rest.shard("model-00001-of-00002.safetensors", {{"a", DType::BF16, {1}}});
  rest.shard("model-00002-of-00002.safetensors", {});
  EXPECT_THAT(paths(rest.build(), "bf16-safetensors"),
              ElementsAre("model-00001-of-00002.safetensors", "model.safetensors.index.json"));
}

TEST(Shards, NeverHaveModelSafetensorsBesideAnIndex) {
  ModelCatalog model;
  model.shard("model.safetensors", {{"a", DType::BF16, {1}}});
  model.shard("extra.safetensors", {{"b", DType::BF16, {1}}});
  const auto catalog = model.build();
  EXPECT_THAT(
      files(catalog, "bf16-safetensors"),
      ElementsAre("model-00001-of-00002.safetensors: b", "model-00002-of-00002.safetensors: a"));
  EXPECT_THAT(paths(catalog, "bf16-safetensors"), Contains("model.safetensors.index.json"));
  ASSERT_EQ(placement_remarks(*catalog, "bf16-safetensors").size(), 1U);
  EXPECT_EQ(placement_remarks(*catalog, "bf16-safetensors")[0].subject, "model.safetensors");
  EXPECT_THAT(placement_remarks(*catalog, "fp32-consolidated"), IsEmpty());
}

TEST(Shards, AreSplitAsHuggingfaceHubDoes) {
  // Files and tensors as huggingface_hub 2.4's split_state_dict_into_shards_factory gives them for
  // tensors of these sizes and shards of 100 bytes.
  const auto split = [](const std::vector<std::int64_t>& sizes) {
    ModelCatalog model;
    std::vector<TensorSpec> tensors;
    for (const std::int64_t size : sizes) {
      tensors.push_back({fmt::format("{}", tensors.size()), DType::I8, {size}});
    }
    model.shard("model.safetensors", tensors);
    return files(model.build(), "bf16-safetensors@max_shard=100");
  };
  EXPECT_THAT(split({10, 20, 30}), ElementsAre("model.safetensors: 0 1 2"));
  EXPECT_THAT(split({60, 40, 1}), ElementsAre("model-00001-of-00002.safetensors: 0 1",
                                              "model-00002-of-00002.safetensors: 2"));
  EXPECT_THAT(split({101}), ElementsAre("model.safetensors: 0"));
  EXPECT_THAT(split({100}), ElementsAre("model.safetensors: 0"));
  EXPECT_THAT(split({200, 200, 1, 1}), ElementsAre("model-00001-of-00003.safetensors: 0",
                                                   "model-00002-of-00003.safetensors: 1",
                                                   "model-00003-of-00003.safetensors: 2 3"));
  EXPECT_THAT(split({50, 300, 50, 1}), ElementsAre("model-00001-of-00003.safetensors: 1",
                                                   "model-00002-of-00003.safetensors: 0 2",
                                                   "model-00003-of-00003.safetensors: 3"));
  EXPECT_THAT(
      split({60, 41, 100, 101, 5, 300, 95, 1}),
      ElementsAre("model-00001-of-00007.safetensors: 0", "model-00002-of-00007.safetensors: 1",
                  "model-00003-of-00007.safetensors: 3", "model-00004-of-00007.safetensors: 2",
                  "model-00005-of-00007.safetensors: 5", "model-00006-of-00007.safetensors: 4 6",
                  "model-00007-of-00007.safetensors: 7"));
}

TEST(Shards, OfAConsolidatedModelAreOneFileUpToFiveGigabytes) {
  ModelCatalog model;
  model.shard("b.safetensors", {{"y", DType::BF16, {3}}});
  model.shard("a.safetensors", {{"x", DType::BF16, {3}}});
  EXPECT_THAT(files(model.build(), "fp32-consolidated"), ElementsAre("model.safetensors: x y"));
}

TEST(Shards, OfAStateAreSplitAndNotMirrored) {
  const auto catalog = zero_state().build();
  EXPECT_THAT(files(catalog, "bf16-safetensors"),
              ElementsAre("model.safetensors: steps mean base embed small head base too"));
  EXPECT_THAT(paths(catalog, "safetensors"), ElementsAre("model.safetensors"));
  // As BF16: 8, 4, 8, 10, 6, 10 and 8 bytes.
  EXPECT_THAT(files(catalog, "bf16-safetensors@max_shard=20"),
              ElementsAre("model-00001-of-00003.safetensors: steps mean base",
                          "model-00002-of-00003.safetensors: embed small",
                          "model-00003-of-00003.safetensors: head base too"));
  EXPECT_THAT(paths(catalog, "bf16-safetensors@max_shard=20"),
              Contains("model.safetensors.index.json"));
}

TEST(Shards, OfTorchFilesHaveOtherNamesBehindWhatTheyShare) {
  const auto catalog = zero_state().build();
  // Names that share follow at the end of the file, by what they share (huggingface_hub).
  EXPECT_THAT(files(catalog, "fp32-consolidated@format=bin"),
              ElementsAre("pytorch_model.bin: steps mean base embed small base too head"));
  // Split of the same state by huggingface_hub 2.4: sizes 8, 8, 16, 20, 12; other names cost
  // nothing and follow theirs. A tensor beyond the limit is a shard before the one that is open.
  EXPECT_THAT(files(catalog, "fp32-consolidated@format=bin,max_shard=18"),
              ElementsAre("pytorch_model-00001-of-00004.bin: steps mean",
                          "pytorch_model-00002-of-00004.bin: embed head",
                          "pytorch_model-00003-of-00004.bin: base base too",
                          "pytorch_model-00004-of-00004.bin: small"));
  EXPECT_THAT(paths(catalog, "fp32-consolidated@format=bin,max_shard=18"),
              Contains("pytorch_model.bin.index.json"));
}

TEST(Shards, KeepTensorsWithoutElementsTogether) {
  // To huggingface_hub they share a storage: that of address 0.
  ModelCatalog model;
  model.state({{"a", DType::F32, {0, 5}},
               {"b", DType::F32, {10}},
               {"c", DType::F32, {10}},
               {"d", DType::I64, {0}},
               {"e", DType::F32, {3}}});
  EXPECT_THAT(
      files(model.build(), "fp32-consolidated@max_shard=45"),
      ElementsAre("model-00001-of-00003.safetensors: a b d", "model-00002-of-00003.safetensors: c",
                  "model-00003-of-00003.safetensors: e"));
}

TEST(Shards, AreNotMoreThanAHundredThousand) {
  CatalogBuilder builder("safetensors");
  Shard shard{"model.safetensors", 0, {}};
  const std::vector<std::int64_t> shape{2};
  const std::vector<Extent> extents{{0, 0, 2}};
  for (int i = 0; i < 100'001; ++i) {
    const StorageId storage = builder.add_storage(DType::I8, 2, extents);
    shard.tensors.push_back(builder.add_tensor(fmt::format("t{}", i), shape, storage));
  }
  builder.add_shard(shard);
  EXPECT_EQ(refusal(std::move(builder).build(), "bf16-safetensors@max_shard=1"),
            "bf16-safetensors@max_shard=1: 100001 shards (100000)");
}

TEST(Shards, HoldANameThatIsNotUtf8InTorchFilesOnly) {
  ModelCatalog model;
  model.state({{"half a pair \xed\xa0\x80", DType::F32, {1}}});
  const auto catalog = model.build();
  EXPECT_EQ(files(catalog, "fp32-consolidated@format=bin").size(), 1U);
  EXPECT_THAT(refusal(catalog, "fp32-consolidated"), HasSubstr("not UTF-8"));
}

TEST(Shards, HoldATensorNamedLikeTheMetadataInTorchFilesOnly) {
  ModelCatalog model;
  model.state({{"__metadata__", DType::F32, {1}}});
  const auto catalog = model.build();
  EXPECT_EQ(files(catalog, "fp32-consolidated@format=bin").size(), 1U);
  EXPECT_EQ(
      refusal(catalog, "fp32-consolidated"),
      "fp32-consolidated: \"__metadata__\": a name that no tensor of a safetensors file can have");
}

TEST(Shards, OfSafetensorsHaveNoComplexNumbersInDouble) {
  ModelCatalog model;
  model.shard("model.safetensors", {{"x", DType::C128, {2}}});
  const auto catalog = model.build();
  auto definition = std::make_shared<Definition>();
  definition->spec.view = "v";
  definition->packaging = {.container = ContainerKind::Safetensors};
  definition->catalog = catalog;
  definition->tensors.push_back(
      {.name = catalog->tensor(0).name, .expr = TensorExpr::stored(*catalog, 0), .shard = 0});
  const auto made = make_safetensors(definition);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().message(), "v: \"x\": C128 has no safetensors dtype");
}

TEST(Shards, OfTorchFilesRefuseDtypesThatTorchLacks) {
  ModelCatalog model;
  model.shard("model.safetensors", {{"x", DType::F6E2M3, {4}}});
  EXPECT_EQ(refusal(model.build(), "fp32-consolidated@format=bin"),
            "fp32-consolidated@format=bin: \"x\": torch has no dtype F6_E2M3");
}

TEST(Shards, OfFusedExpertsAreOneForEachLayer) {
  ModelCatalog model;
  model.config(R"({"model_type": "qwen3_moe"})");
  model.shard("model-1.safetensors",
              {{"embed", DType::BF16, {2}},
               {"model.layers.10.mlp.experts.0.gate_proj.weight", DType::BF16, {2, 2}},
               {"model.layers.10.mlp.experts.0.up_proj.weight", DType::BF16, {2, 2}}});
  model.shard("model-2.safetensors",
              {{"model.layers.10.mlp.experts.0.down_proj.weight", DType::BF16, {2, 2}},
               {"model.layers.2.norm", DType::BF16, {2}},
               {"tower.layers.2.norm", DType::BF16, {2}}});
  const auto catalog = model.build();
  EXPECT_THAT(files(catalog, "bf16-safetensors@experts=fused"),
              ElementsAre("model-layer-00002.safetensors: model.layers.2.norm tower.layers.2.norm",
                          "model-layer-00010.safetensors: model.layers.10.mlp.experts.gate_up_proj "
                          "model.layers.10.mlp.experts.down_proj",
                          "model-rest.safetensors: embed"));
  EXPECT_THAT(paths(catalog, "bf16-safetensors@experts=fused"),
              Contains("model.safetensors.index.json"));
  EXPECT_THAT(paths(catalog, "bf16-safetensors@experts=linear"), Contains("model.safetensors"));
  EXPECT_EQ(define(catalog, "bf16-safetensors@experts=linear,max_shard=5GB")->spec.canonical(),
            "bf16-safetensors@experts=linear");
}

TEST(Shards, OfOneLayerHaveAnIndex) {
  for (const std::string layer : {"", "model.layers.3."}) {
    ModelCatalog model;
    model.config(R"({"model_type": "qwen3_moe"})");
    model.shard("model.safetensors",
                {{layer + "mlp.experts.0.gate_proj.weight", DType::BF16, {2, 2}},
                 {layer + "mlp.experts.0.up_proj.weight", DType::BF16, {2, 2}},
                 {layer + "mlp.experts.0.down_proj.weight", DType::BF16, {2, 2}}});
    EXPECT_THAT(
        paths(model.build(), "bf16-safetensors@experts=fused"),
        ElementsAre("config.json",
                    layer.empty() ? "model-rest.safetensors" : "model-layer-00003.safetensors",
                    "model.safetensors.index.json"));
  }
}

TEST(Shards, TellALayerByThePartOfTheName) {
  EXPECT_EQ(layer_of("model.layers.12.norm"), 12u);
  EXPECT_EQ(layer_of("layers.0"), 0u);
  EXPECT_EQ(layer_of("sublayers.3.x"), std::nullopt);
  EXPECT_EQ(layer_of("layers.x.layers.4.y"), 4u);
  EXPECT_EQ(layer_of("layers.4x"), std::nullopt);
  EXPECT_EQ(layer_of("layers.99999999999"), std::nullopt);
  EXPECT_EQ(layer_of("model.norm"), std::nullopt);
}

}  // namespace
}  // namespace ckfs
