#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/model_catalog.h"
#include "view/view.h"

namespace ckfs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// "name: dtype label" of each tensor, in the view's order.
std::vector<std::string> tensors(const Definition& definition) {
  std::vector<std::string> lines;
  for (const ModelTensor& tensor : definition.tensors) {
    constexpr std::array kLabels{"bit-exact", "exact", "lossy", "quantized"};
    lines.push_back(fmt::format("{}: {} {}", tensor.name, name(tensor.expr.dtype()),
                                kLabels[static_cast<std::size_t>(tensor.exactness)]));
  }
  return lines;
}

/// "subject: text" of each.
std::vector<std::string> sayings(const std::vector<Note>& notes) {
  std::vector<std::string> lines;
  for (const Note& note : notes) lines.push_back(note.subject + ": " + note.text);
  return lines;
}

ModelCatalog plain_model() {
  ModelCatalog model;
  model.shard("model-1.safetensors", {{"z.bf16", DType::BF16, {2, 3}},
                                      {"a.f16", DType::F16, {4}},
                                      {"a.f32", DType::F32, {}},
                                      {"b.f64", DType::F64, {0, 7}}});
  model.shard("model-2.safetensors", {{"c.f8", DType::F8E4M3, {8}},
                                      {"c.f4", DType::F4, {8}},
                                      {"c.c64", DType::C64, {2}},
                                      {"c.i64", DType::I64, {2}},
                                      {"c.bool", DType::Bool, {2}}});
  return model;
}

ModelCatalog quantized_model() {
  ModelCatalog model;
  model.shard("model.safetensors", {{"q.weight", DType::F8E4M3, {4, 4}, true},
                                    {"norm", DType::BF16, {4}},
                                    {"bias", DType::F32, {4}}});
  return model;
}

TEST(HfModel, CastsAllFloatsOfAPlainSource) {
  EXPECT_THAT(
      tensors(*define(plain_model().build(), "bf16-safetensors")),
      ElementsAre("z.bf16: BF16 bit-exact", "a.f16: BF16 lossy", "a.f32: BF16 lossy",
                  "b.f64: BF16 lossy", "c.f8: F8_E4M3 bit-exact", "c.f4: F4 bit-exact",
                  "c.c64: C64 bit-exact", "c.i64: I64 bit-exact", "c.bool: BOOL bit-exact"));
  const auto fp32 = tensors(*define(plain_model().build(), "fp32-safetensors"));
  EXPECT_THAT(std::vector(fp32.begin(), fp32.begin() + 4),
              ElementsAre("z.bf16: F32 exact", "a.f16: F32 exact", "a.f32: F32 bit-exact",
                          "b.f64: F32 lossy"));
  const auto fp16 = tensors(*define(plain_model().build(), "fp16-safetensors"));
  EXPECT_THAT(std::vector(fp16.begin(), fp16.begin() + 4),
              ElementsAre("z.bf16: F16 lossy", "a.f16: F16 bit-exact", "a.f32: F16 lossy",
                          "b.f64: F16 lossy"));
}

TEST(HfModel, CastsNothingOfAPlainSourceWhenAskedForQuantizedOnly) {
  const auto definition = define(plain_model().build(), "bf16-safetensors@cast=quantized");
  EXPECT_EQ(definition->spec.canonical(), "bf16-safetensors@cast=quantized");
  for (const ModelTensor& tensor : definition->tensors) {
    EXPECT_EQ(tensor.exactness, Exactness::BitExact) << tensor.name;
  }
  EXPECT_EQ(definition->tensors[2].expr.dtype(), DType::F32);
}

TEST(HfModel, CastsTheFewFloatsOfASourceThatIsBf16ForTheMostPart) {
  ModelCatalog model;
  model.shard("model.safetensors",
              {{"weight", DType::BF16, {64, 64}}, {"router.bias", DType::F32, {64}}});
  const auto catalog = model.build();
  // In layouts of experts they stay: tests/golden/test_experts.py.
  EXPECT_THAT(tensors(*define(catalog, "bf16-safetensors")),
              ElementsAre("weight: BF16 bit-exact", "router.bias: BF16 lossy"));
  EXPECT_THAT(tensors(*define(catalog, "bf16-safetensors@cast=quantized")),
              ElementsAre("weight: BF16 bit-exact", "router.bias: F32 bit-exact"));
}

TEST(HfModel, KeepsWhatIsNotQuantizedInAQuantizedSource) {
  EXPECT_THAT(
      tensors(*define(quantized_model().build(), "bf16-safetensors")),
      ElementsAre("q.weight: BF16 bit-exact", "norm: BF16 bit-exact", "bias: F32 bit-exact"));
  EXPECT_THAT(tensors(*define(quantized_model().build(), "bf16-safetensors@cast=all")),
              ElementsAre("q.weight: BF16 bit-exact", "norm: BF16 bit-exact", "bias: BF16 lossy"));
  EXPECT_THAT(tensors(*define(quantized_model().build(), "fp16-safetensors")),
              ElementsAre("q.weight: F16 lossy", "norm: F16 lossy", "bias: F16 lossy"));
  EXPECT_THAT(tensors(*define(quantized_model().build(), "fp32-consolidated")),
              ElementsAre("q.weight: F32 bit-exact", "norm: F32 exact", "bias: F32 bit-exact"));
}

TEST(HfModel, KeepsTheCastThatAPartWouldNotGetByItself) {
  // A pipeline: its quantized part keeps what is not quantized, and the plain one casts all.
  const auto pipeline = [](ModelCatalog top) {
    return top.part("plain/", plain_model().build())
        .part("quantized/", quantized_model().build())
        .build();
  };
  for (const auto& catalog : {pipeline(plain_model()), pipeline(quantized_model())}) {
    for (const char* cast : {"all", "quantized"}) {
      const std::string spelling = fmt::format("bf16-safetensors@cast={}", cast);
      EXPECT_EQ(define(catalog, spelling)->spec.canonical(), spelling);
    }
    EXPECT_EQ(define(catalog, "bf16-safetensors")->spec.canonical(), "bf16-safetensors");
  }
  const auto alike = plain_model().part("plain/", plain_model().build()).build();
  EXPECT_EQ(define(alike, "bf16-safetensors@cast=all")->spec.canonical(), "bf16-safetensors");
}

TEST(HfModel, LeavesOutTheCastThatTheSourceGetsAnyway) {
  EXPECT_EQ(define(plain_model().build(), "bf16-safetensors@cast=all")->spec.canonical(),
            "bf16-safetensors");
  EXPECT_EQ(define(quantized_model().build(), "bf16-safetensors@cast=quantized")->spec.canonical(),
            "bf16-safetensors");
  EXPECT_EQ(define(quantized_model().build(), "bf16-safetensors@cast=all")->spec.canonical(),
            "bf16-safetensors@cast=all");
}

TEST(HfModel, KnowsTheShardThatEachTensorComesFrom) {
  ModelCatalog model;
  model.shard("model-3.safetensors", {{"c", DType::BF16, {1}}});
  model.shard("model-1.safetensors", {{"b", DType::BF16, {1}}, {"a", DType::BF16, {1}}});
  model.shard("model-2.safetensors", {});
  const auto catalog = model.build();
  const auto definition = define(catalog, "bf16-safetensors");
  EXPECT_EQ(definition->packaging.placement, Placement::Mirrored);
  std::vector<std::string> places;
  for (const ModelTensor& tensor : definition->tensors) {
    places.push_back(fmt::format("{} {}", tensor.name, catalog->shards()[tensor.shard].path));
  }
  EXPECT_THAT(places, ElementsAre("b model-1.safetensors", "a model-1.safetensors",
                                  "c model-3.safetensors"));
  EXPECT_EQ(define(catalog, "bf16-safetensors@max_shard=2KB")->packaging.placement,
            Placement::Split);
  EXPECT_EQ(define(catalog, "bf16-safetensors@max_shard=2KB")->packaging.max_shard, 2000U);
}

TEST(HfModel, EditsTheConfigAndKeepsSideFiles) {
  ModelCatalog model = quantized_model();
  model.config("{\n  \"torch_dtype\": \"bfloat16\",\n  \"quantization_config\": {}\n}\n");
  model.side_file("tokenizer.json", "{}");
  const auto definition = define(model.build(), "fp16-safetensors");
  ASSERT_EQ(definition->texts.size(), 1u);
  EXPECT_EQ(definition->texts[0].path, "config.json");
  EXPECT_EQ(definition->texts[0].text, "{\n  \"torch_dtype\": \"float16\"\n}\n");
  ASSERT_EQ(definition->side_files.size(), 1u);
  EXPECT_EQ(definition->side_files[0].path, "tokenizer.json");
}

TEST(HfModel, SaysWhatPassesUnchanged) {
  for (const ViewSummary& view : list_views(plain_model().build())) {
    if (!view.obstacles.empty() || view.name == "source") continue;
    EXPECT_THAT(sayings(view.remarks),
                ElementsAre("c.f4: F4 passes unchanged", "c.f8: F8_E4M3 passes unchanged",
                            "c.c64: C64 passes unchanged", "config.json: absent in the source"))
        << view.name;
  }
}

TEST(HfModel, IsAbsentWhereATensorCannotBeShown) {
  ModelCatalog model = quantized_model();
  model.obstacle("x.weight", "quantization \"magic\" is not known");
  model.obstacle("y.weight", "scale of shape [3] for [4, 4]");
  const auto catalog = model.build();
  for (const ViewSummary& view : list_views(catalog)) {
    if (view.name == "orbax") continue;  // of trees
    const std::size_t expected = view.name == "source" ? 0 : view.name == "safetensors" ? 1 : 2;
    EXPECT_EQ(view.obstacles.size(), expected) << view.name;
  }
  const auto absent = define_view(catalog, {"bf16-safetensors", {}});
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), ErrorCode::Unsupported);
  EXPECT_EQ(absent.error().message(),
            "bf16-safetensors: the source cannot give this view: \"x.weight\": quantization "
            "\"magic\" is not known; \"y.weight\": scale of shape [3] for [4, 4]");
  EXPECT_EQ(define(catalog, "source")->side_files.size(), 1u);
}

TEST(HfModel, RefusesQuantizedWeightsThatLieTurned) {
  const auto obstacles = [](const std::string& model_type, bool quantized) {
    ModelCatalog model;
    model.config(fmt::format(R"({{"model_type": "{}"}})", model_type));
    model.shard("model.safetensors", {{"h.0.attn.c_attn.weight", DType::F8E4M3, {4, 4}, quantized},
                                      {"h.0.attn.k_proj.weight", DType::F8E4M3, {4, 4}, true}});
    const auto made = define_view(model.build(), {"bf16-safetensors", {}});
    return made ? std::string() : made.error().message();
  };
  EXPECT_THAT(
      obstacles("gpt2", true),
      HasSubstr("\"h.0.attn.c_attn.weight\": quantized Conv1D weights are stored transposed"));
  EXPECT_EQ(obstacles("gpt2", false), "");
  EXPECT_EQ(obstacles("gpt_bigcode", true), "");
}

TEST(HfModel, CannotHoldWhatSafetensorsCannot) {
  ModelCatalog model;
  model.shard("model.safetensors", {{"complex", DType::C128, {2}}});
  const auto absent = define_view(model.build(), {"fp32-safetensors", {}});
  ASSERT_FALSE(absent);
  EXPECT_THAT(absent.error().message(), HasSubstr("\"complex\": C128 has no safetensors dtype"));
}

TEST(HfModel, LeavesOutWhatSafetensorsCannotHoldIfThatLeavesAnything) {
  ModelCatalog alone;
  alone.state({{"complex", DType::C128, {2}}});
  EXPECT_FALSE(define_view(alone.build(), {"fp32-safetensors", {}}));
  ModelCatalog model;
  model.state({{"complex", DType::C128, {2}}, {"w", DType::F32, {2}}});
  const auto catalog = model.build();
  EXPECT_EQ(define(catalog, "fp32-safetensors")->tensors.size(), 1U);
  EXPECT_EQ(define(catalog, "fp32-consolidated@format=bin")->tensors.size(), 2U);
}

TEST(SourceView, ShowsEveryFileAsItIs) {
  ModelCatalog model = quantized_model();
  model.side_file("README.md", "text");
  const auto definition = define(model.build(), "source");
  EXPECT_EQ(definition->packaging.container, ContainerKind::None);
  EXPECT_THAT(definition->tensors, IsEmpty());
  ASSERT_EQ(definition->side_files.size(), 2u);
  EXPECT_EQ(definition->side_files[0].path, "README.md");
  EXPECT_EQ(definition->side_files[1].path, "model.safetensors");
}

}  // namespace
}  // namespace ckfs
