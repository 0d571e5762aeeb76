// Views of sources that training leaves: roles, other names, no files to mirror.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/model_catalog.h"
#include "view/view.h"

namespace ckfs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// "name: dtype", and what it shares its bytes with.
std::vector<std::string> tensor_lines(const Definition& definition) {
  std::vector<std::string> lines;
  for (const ModelTensor& tensor : definition.tensors) {
    std::string line = fmt::format("{}: {}", tensor.name, name(tensor.expr.dtype()));
    if (tensor.same_as != ModelTensor::kNone) {
      line += fmt::format(" = {}", definition.tensors[tensor.same_as].name);
    }
    lines.push_back(std::move(line));
  }
  return lines;
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

TEST(Safetensors, ShowsTensorsAsStoredUnderTheModelsName) {
  const auto definition = define(zero_state().build(), "safetensors");
  EXPECT_THAT(tensor_lines(*definition),
              ElementsAre("steps: I64", "mean: F64", "base: BF16", "embed: F32", "small: F32",
                          "head: F32 = embed", "base too: BF16 = base"));
  EXPECT_EQ(definition->packaging.container, ContainerKind::Safetensors);
  EXPECT_EQ(definition->packaging.placement, Placement::Split);
  EXPECT_EQ(definition->packaging.max_shard, 5'000'000'000);
}

TEST(Consolidated, ATensorMayComeBehindItsOtherNames) {
  ModelCatalog model;
  model.state({{"head", DType::F32, {5}, false, Role::Weight, "embed"},
               {"small", DType::F32, {5}},
               {"embed", DType::F32, {5}},
               {"too", DType::F32, {5}, false, Role::Weight, "embed"}});
  EXPECT_THAT(tensor_lines(*define(model.build(), "fp32-consolidated@format=bin")),
              ElementsAre("head: F32", "small: F32", "embed: F32 = head", "too: F32 = head"));
}

TEST(Safetensors, KeepsTheConfigAsItIs) {
  ModelCatalog model = zero_state();
  model.config("{\"torch_dtype\": \"bfloat16\"}");
  const auto catalog = model.build();
  EXPECT_EQ(define(catalog, "safetensors")->texts[0].text, "{\"torch_dtype\": \"bfloat16\"}");
  EXPECT_EQ(define(catalog, "fp32-consolidated")->texts[0].text, "{\"torch_dtype\": \"float32\"}");
}

TEST(Safetensors, IsAbsentWhereTheSourceIsSafetensors) {
  ModelCatalog model;
  model.shard("model.safetensors", {{"x", DType::BF16, {3}}});
  const auto absent = define_view(model.build(), {"safetensors", {}});
  ASSERT_FALSE(absent);
  EXPECT_THAT(absent.error().message(), HasSubstr("already"));
}

TEST(Consolidated, CastsFloatsAndKeepsIntegers) {
  EXPECT_THAT(tensor_lines(*define(zero_state().build(), "fp32-consolidated")),
              ElementsAre("steps: I64", "mean: F32", "base: F32", "embed: F32", "small: F32",
                          "head: F32 = embed", "base too: F32 = base"));
}

TEST(Consolidated, SaysWhichTensorsAreOtherNames) {
  const auto catalog = zero_state().build();
  EXPECT_THAT(tensor_lines(*define(catalog, "fp32-consolidated@format=bin")),
              ElementsAre("steps: I64", "mean: F32", "base: F32", "embed: F32", "small: F32",
                          "head: F32 = embed", "base too: F32 = base"));
  EXPECT_EQ(define(catalog, "fp32-consolidated@format=bin")->packaging.container,
            ContainerKind::TorchZip);
}

TEST(Consolidated, SaysWhatEachTensorWasInItsRun) {
  const auto definition = define(zero_state().build(), "fp32-consolidated");
  std::vector<Role> roles;
  for (const ModelTensor& tensor : definition->tensors) {
    roles.push_back(tensor.role);
    EXPECT_EQ(tensor.shard, 0U);
  }
  EXPECT_THAT(roles, ElementsAre(Role::Buffer, Role::Buffer, Role::Frozen, Role::Weight,
                                 Role::Weight, Role::Weight, Role::Frozen));
}

TEST(Consolidated, NamesShareWithTheirOwnShape) {
  ModelCatalog model;
  model.state({{"scalar", DType::F32, {}},
               {"vector", DType::F32, {1}, false, Role::Weight, "", "scalar"},
               {"vector too", DType::F32, {1}, false, Role::Weight, "vector"},
               {"scalar too", DType::F32, {}, false, Role::Weight, "scalar"}});
  EXPECT_THAT(tensor_lines(*define(model.build(), "fp32-consolidated@format=bin")),
              ElementsAre("scalar: F32", "vector: F32", "vector too: F32 = vector",
                          "scalar too: F32 = scalar"));
}

TEST(Consolidated, LeavesFrozenWeightsOutWhenAsked) {
  const auto catalog = zero_state().build();
  EXPECT_THAT(
      tensor_lines(*define(catalog, "fp32-consolidated@exclude_frozen=1")),
      ElementsAre("steps: I64", "mean: F32", "embed: F32", "small: F32", "head: F32 = embed"));
  const auto module = define(catalog, "fp32-consolidated@frozen=module");
  EXPECT_THAT(tensor_lines(*module),
              ElementsAre("steps: I64", "mean: F32", "base: F32", "hidden: F32", "embed: F32",
                          "small: F32", "head: F32 = embed", "base too: F32 = base"));
  EXPECT_EQ(module->spec.canonical(), "fp32-consolidated@frozen=module");
  // Nothing frozen is shown, wherever it is known from.
  EXPECT_EQ(define(catalog, "fp32-consolidated@exclude_frozen=1,frozen=module")->spec.canonical(),
            "fp32-consolidated@exclude_frozen=1");
}

TEST(Consolidated, HasOneNameWhereParametersChangeNothing) {
  ModelCatalog model;
  model.state({{"x", DType::F32, {3}}});
  EXPECT_EQ(define(model.build(), "fp32-consolidated@exclude_frozen=1,frozen=module,format=bin")
                ->spec.canonical(),
            "fp32-consolidated@format=bin");
}

TEST(TrainingState, IsToldWhatViewsLeaveOut) {
  ModelCatalog model;
  model.state({{"w", DType::F32, {3}},
               {"c", DType::C128, {2}},
               {"c2", DType::C128, {2}},
               {"f", DType::F16, {2}, false, Role::FrozenModule}});
  const auto catalog = model.build();
  for (const ViewSummary& view : list_views(catalog)) {
    // Of a model of which nothing is known there is none of these.
    const bool absent = view.name == "orbax" || view.name.starts_with("maxtext-") ||
                        view.name == "megatron-torch-dist" || view.name == "fp8-safetensors" ||
                        view.name == "ct-safetensors" || view.name == "nf4-safetensors";
    EXPECT_EQ(!view.obstacles.empty(), absent) << view.name;
    if (view.name == "source" || absent) continue;
    ASSERT_EQ(view.remarks.size(), 3U) << view.name;
    EXPECT_EQ(view.remarks[0].subject, "c");
    EXPECT_THAT(view.remarks[0].text, HasSubstr("so are 1 more"));
    EXPECT_EQ(view.remarks[1].subject, "f");
    EXPECT_THAT(view.remarks[1].text, HasSubstr("frozen=module"));
  }
  EXPECT_THAT(tensor_lines(*define(catalog, "safetensors")), ElementsAre("w: F32"));
  EXPECT_THAT(tensor_lines(*define(catalog, "fp32-consolidated@format=bin")),
              ElementsAre("w: F32", "c: C128", "c2: C128"));
}

TEST(TrainingState, IsToldOfAViewThatThereIs) {
  ModelCatalog model;
  model.state({{"w", DType::F32, {3}}, {"c", DType::C128, {2}}}).tree({});
  for (const ViewSummary& view : list_views(model.build())) {
    if (view.name != "safetensors") continue;
    ASSERT_FALSE(view.remarks.empty());
    EXPECT_EQ(view.remarks[0].text, "left out: safetensors has no C128 (orbax shows it)");
  }
}

TEST(TrainingState, IsToldOfAnObstacleOnce) {
  ModelCatalog model;
  model.tree({{"params.params.decoder.decoder_norm.scale", DType::F32, {3}}}).obstacle("w", "why");
  for (const ViewSummary& view : list_views(model.build())) {
    if (view.name != "bf16-safetensors") continue;
    EXPECT_EQ(view.obstacles.size(), 1U);
  }
}

}  // namespace
}  // namespace ckfs
