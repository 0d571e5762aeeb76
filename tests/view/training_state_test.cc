// Views of sources that training leaves: roles, other names, no files to mirror.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "view/model_catalog.h"
#include "view/view.h"

namespace ckfs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// "path: name name" of each file.
std::vector<std::string> files(const Definition& definition) {
  std::vector<std::string> lines;
  for (const TensorFile& file : definition.files) {
    std::vector<std::string_view> names;
    for (const std::uint32_t id : file.tensors) names.push_back(definition.tensors[id].name);
    lines.push_back(fmt::format("{}: {}", file.path, fmt::join(names, " ")));
  }
  return lines;
}

/// "name: dtype", and what it shares its bytes with.
std::vector<std::string> tensors(const Definition& definition) {
  std::vector<std::string> lines;
  for (const ViewTensor& tensor : definition.tensors) {
    std::string line = fmt::format("{}: {}", tensor.name, name(tensor.expr.dtype()));
    if (tensor.same_as != ViewTensor::kOwnBytes) {
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
  EXPECT_THAT(tensors(*definition),
              ElementsAre("steps: I64", "mean: F64", "base: BF16", "embed: F32", "small: F32",
                          "head: F32", "base too: BF16"));
  EXPECT_EQ(files(*definition).size(), 1U);
  EXPECT_EQ(definition->files[0].path, "model.safetensors");
  EXPECT_EQ(definition->index, "");
  EXPECT_EQ(definition->container, Container::Safetensors);
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

TEST(TrainingState, IsSplitAndNotMirrored) {
  const auto catalog = zero_state().build();
  EXPECT_THAT(files(*define(catalog, "bf16-safetensors")),
              ElementsAre("model.safetensors: steps mean base embed small head base too"));
  // As BF16: 8, 4, 8, 10, 6, 10 and 8 bytes.
  const auto split = define(catalog, "bf16-safetensors@max_shard=20");
  EXPECT_THAT(files(*split), ElementsAre("model-00001-of-00003.safetensors: steps mean base",
                                         "model-00002-of-00003.safetensors: embed small",
                                         "model-00003-of-00003.safetensors: head base too"));
  EXPECT_EQ(split->index, "model.safetensors.index.json");
  EXPECT_EQ(define(catalog, "bf16-safetensors@max_shard=5GB")->spec.canonical(),
            "bf16-safetensors");
}

TEST(Consolidated, CastsFloatsAndKeepsIntegers) {
  EXPECT_THAT(tensors(*define(zero_state().build(), "fp32-consolidated")),
              ElementsAre("steps: I64", "mean: F32", "base: F32", "embed: F32", "small: F32",
                          "head: F32", "base too: F32"));
}

TEST(Consolidated, SharesBytesInTorchFilesOnly) {
  const auto catalog = zero_state().build();
  const auto bin = define(catalog, "fp32-consolidated@format=bin");
  EXPECT_EQ(bin->container, Container::TorchZip);
  EXPECT_THAT(tensors(*bin),
              ElementsAre("steps: I64", "mean: F32", "base: F32", "embed: F32", "small: F32",
                          "head: F32 = embed", "base too: F32 = base"));
  // Names that share follow at the end of the file, by what they share (huggingface_hub).
  EXPECT_THAT(files(*bin),
              ElementsAre("pytorch_model.bin: steps mean base embed small base too head"));
}

TEST(Consolidated, NamesShareWithTheirOwnShape) {
  ModelCatalog model;
  model.state({{"scalar", DType::F32, {}},
               {"vector", DType::F32, {1}, false, Role::Weight, "", "scalar"},
               {"vector too", DType::F32, {1}, false, Role::Weight, "vector"},
               {"scalar too", DType::F32, {}, false, Role::Weight, "scalar"}});
  EXPECT_THAT(tensors(*define(model.build(), "fp32-consolidated@format=bin")),
              ElementsAre("scalar: F32", "vector: F32", "vector too: F32 = vector",
                          "scalar too: F32 = scalar"));
}

TEST(Consolidated, ANameThatIsNotUtf8IsForTorchFilesOnly) {
  ModelCatalog model;
  model.state({{"half a pair \xed\xa0\x80", DType::F32, {1}}});
  const auto catalog = model.build();
  EXPECT_EQ(define(catalog, "fp32-consolidated@format=bin")->tensors.size(), 1U);
  const auto absent = define_view(catalog, {"fp32-consolidated", {}});
  ASSERT_FALSE(absent);
  EXPECT_THAT(absent.error().message(), HasSubstr("not UTF-8"));
}

TEST(Consolidated, SplitsAsHuggingfaceHubDoes) {
  // Split of the same state by huggingface_hub 2.4: sizes 8, 8, 16, 20, 12; other names cost
  // nothing and follow theirs. A tensor beyond the limit is a shard before the one that is open.
  const auto definition = define(zero_state().build(), "fp32-consolidated@format=bin,max_shard=18");
  EXPECT_THAT(files(*definition), ElementsAre("pytorch_model-00001-of-00004.bin: steps mean",
                                              "pytorch_model-00002-of-00004.bin: embed head",
                                              "pytorch_model-00003-of-00004.bin: base base too",
                                              "pytorch_model-00004-of-00004.bin: small"));
  EXPECT_EQ(definition->index, "pytorch_model.bin.index.json");
}

TEST(Consolidated, KeepsTensorsWithoutElementsTogether) {
  // To huggingface_hub they share a storage: that of address 0.
  ModelCatalog model;
  model.state({{"a", DType::F32, {0, 5}},
               {"b", DType::F32, {10}},
               {"c", DType::F32, {10}},
               {"d", DType::I64, {0}},
               {"e", DType::F32, {3}}});
  EXPECT_THAT(
      files(*define(model.build(), "fp32-consolidated@max_shard=45")),
      ElementsAre("model-00001-of-00003.safetensors: a b d", "model-00002-of-00003.safetensors: c",
                  "model-00003-of-00003.safetensors: e"));
}

TEST(Consolidated, LeavesFrozenWeightsOutWhenAsked) {
  const auto catalog = zero_state().build();
  EXPECT_THAT(tensors(*define(catalog, "fp32-consolidated@exclude_frozen=1")),
              ElementsAre("steps: I64", "mean: F32", "embed: F32", "small: F32", "head: F32"));
  const auto module = define(catalog, "fp32-consolidated@frozen=module");
  EXPECT_THAT(tensors(*module),
              ElementsAre("steps: I64", "mean: F32", "base: F32", "hidden: F32", "embed: F32",
                          "small: F32", "head: F32", "base too: F32"));
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
  for (const ViewSummary& view : list_views(*catalog)) {
    if (view.name == "source") continue;
    EXPECT_THAT(view.obstacles, IsEmpty()) << view.name;
    ASSERT_EQ(view.remarks.size(), 3U) << view.name;
    EXPECT_EQ(view.remarks[0].subject, "c");
    EXPECT_THAT(view.remarks[0].text, HasSubstr("so are 1 more"));
    EXPECT_EQ(view.remarks[1].subject, "f");
    EXPECT_THAT(view.remarks[1].text, HasSubstr("frozen=module"));
  }
  EXPECT_THAT(tensors(*define(catalog, "safetensors")), ElementsAre("w: F32"));
  EXPECT_THAT(tensors(*define(catalog, "fp32-consolidated@format=bin")),
              ElementsAre("w: F32", "c: C128", "c2: C128"));
}

TEST(Consolidated, RefusesDtypesThatTorchLacks) {
  ModelCatalog model;
  model.shard("model.safetensors", {{"x", DType::F6E2M3, {4}}});
  const auto refused = define_view(model.build(), {"fp32-consolidated", {{"format", "bin"}}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::Unsupported);
  EXPECT_EQ(refused.error().message(),
            "fp32-consolidated@format=bin: \"x\": torch has no dtype F6_E2M3");
}

}  // namespace
}  // namespace ckfs
