// What the views that quantize choose, refuse and write into config.json; their bytes are those of
// tests/golden/test_quantizing.py.
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/model_catalog.h"
#include "view/view.h"

namespace ckfs {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;
using Json = nlohmann::json;

constexpr const char* kConfig = R"({"model_type": "llama", "dtype": "float16"})";

ModelCatalog small_llama() {
  ModelCatalog model;
  model.shard("model.safetensors", {{"lm_head.weight", DType::BF16, {8, 16}},
                                    {"model.embed_tokens.weight", DType::BF16, {8, 16}},
                                    {"model.layers.0.mlp.gate_proj.weight", DType::BF16, {4, 16}},
                                    {"model.layers.0.mlp.up_proj.weight", DType::F16, {4, 16}},
                                    {"model.layers.0.self_attn.q_proj.weight", DType::F32, {2, 16}},
                                    {"model.layers.0.self_attn.q_proj.bias", DType::BF16, {2}},
                                    {"model.norm.weight", DType::BF16, {16}}});
  model.config(kConfig);
  return model;
}

std::vector<std::string> listed(const Definition& definition) {
  std::vector<std::string> lines;
  for (const ModelTensor& tensor : definition.tensors) {
    lines.push_back(fmt::format("{} {}{}", tensor.name, name(tensor.expr.dtype()),
                                tensor.exactness == Exactness::Quantized ? " quantized" : ""));
  }
  return lines;
}

Json config_of(const Definition& definition) {
  for (const TextFile& text : definition.texts) {
    if (text.path == "config.json") return Json::parse(text.text);
  }
  return {};
}

std::string refusal(std::shared_ptr<const Catalog> catalog, const std::string& spelling) {
  const auto spec = parse_view_spec(spelling);
  if (!spec) return spec.error().message();
  const auto made = define_view(std::move(catalog), *spec);
  return made ? std::string() : made.error().message();
}

TEST(QuantizingView, ExchangesTheWeightsThatTheToolChooses) {
  const auto definition = define(small_llama().build(), "fp8-safetensors");
  EXPECT_THAT(listed(*definition),
              ElementsAre("lm_head.weight BF16", "model.embed_tokens.weight BF16",
                          "model.layers.0.mlp.gate_proj.weight F8_E4M3 quantized",
                          "model.layers.0.mlp.gate_proj.weight_scale_inv F32 quantized",
                          "model.layers.0.mlp.up_proj.weight F8_E4M3 quantized",
                          "model.layers.0.mlp.up_proj.weight_scale_inv F32 quantized",
                          "model.layers.0.self_attn.q_proj.weight F8_E4M3 quantized",
                          "model.layers.0.self_attn.q_proj.weight_scale_inv F32 quantized",
                          "model.layers.0.self_attn.q_proj.bias BF16", "model.norm.weight BF16"));
  EXPECT_EQ("slime 624b824 on CPU", definition->tool);
  const Json config = config_of(*definition);
  EXPECT_EQ("float16", config["dtype"]);
  EXPECT_EQ(
      Json({"lm_head", "model.embed_tokens", "model.layers.0.self_attn.q_proj.bias", "model.norm"}),
      config["quantization_config"]["modules_to_not_convert"]);
}

TEST(QuantizingView, LeavesWhatIgnoreAndOnlySay) {
  const auto names = [](const std::string& spelling) {
    std::vector<std::string> lines;
    const auto definition = define(small_llama().build(), spelling);
    for (const QuantizedTensor& weight : definition->weights) {
      lines.emplace_back(weight.name);
    }
    return lines;
  };
  EXPECT_THAT(names("ct-safetensors@scheme=W8A8,ignore=re:.*mlp.*"),
              ElementsAre("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_THAT(names("fp8-safetensors@ignore=model.layers.0.mlp.up_proj;re:.*q_proj$"),
              ElementsAre("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_THAT(names("ct-safetensors@only=re:.*up_proj$"),
              ElementsAre("model.layers.0.mlp.up_proj.weight"));
  const auto only = define(small_llama().build(), "ct-safetensors@only=re:.*up_proj$");
  const Json ignored = config_of(*only)["quantization_config"]["ignore"];
  EXPECT_EQ("model.layers.0.mlp.gate_proj", ignored[10]);
  EXPECT_EQ("model.layers.0.self_attn.q_proj", ignored[11]);
  EXPECT_THAT(refusal(small_llama().build(), "ct-safetensors@ignore=re:("), HasSubstr("pattern"));
}

TEST(QuantizingView, SharesTheMaximaOfTheToolsSets) {
  const auto sets = [](ModelCatalog model, const std::string& spelling) {
    std::vector<std::string> lines;
    const auto definition = define(model.build(), spelling);
    for (const auto& set : definition->sets) {
      std::string line;
      for (const std::uint32_t member : set) {
        const std::string_view name = definition->weights[member].name;
        line += fmt::format("{}{}", line.empty() ? "" : " ", name.substr(0, name.size() - 7));
      }
      lines.push_back(line);
    }
    return lines;
  };
  const auto experts = [] {
    ModelCatalog model;
    model.shard("model.safetensors", {{"a.mlp.gate_proj.weight", DType::BF16, {2, 16}},
                                      {"a.mlp.up_proj.weight", DType::BF16, {2, 16}},
                                      {"b.self_attn.k_proj.weight", DType::BF16, {2, 16}},
                                      {"b.self_attn.q_proj.weight", DType::BF16, {2, 16}},
                                      {"c.experts.0.gate_proj.weight", DType::BF16, {2, 16}},
                                      {"c.experts.0.up_proj.weight", DType::BF16, {2, 16}}});
    return model;
  };
  EXPECT_THAT(
      sets(experts(), "ct-safetensors@scheme=NVFP4A16"),
      UnorderedElementsAre("a.mlp.gate_proj a.mlp.up_proj", "b.self_attn.k_proj",
                           "b.self_attn.q_proj", "c.experts.0.gate_proj", "c.experts.0.up_proj"));
  EXPECT_THAT(
      sets(experts(), "ct-safetensors@scheme=NVFP4A16,fuse=experts"),
      UnorderedElementsAre("a.mlp.gate_proj a.mlp.up_proj", "b.self_attn.k_proj",
                           "b.self_attn.q_proj", "c.experts.0.gate_proj c.experts.0.up_proj"));
  EXPECT_THAT(sets(experts(), "ct-safetensors@scheme=NVFP4A16,ignore=a.mlp.up_proj"),
              testing::Contains("a.mlp.gate_proj"));
}

TEST(QuantizingView, RefusesWithTheNameAndTheWayOut) {
  const auto with = [](const TensorSpec& more) {
    ModelCatalog model;
    model.shard("model.safetensors", {{"a.q_proj.weight", DType::BF16, {2, 128}}, more});
    return model.build();
  };
  EXPECT_THAT(refusal(with({"a.x_weight", DType::BF16, {2, 2}}), "fp8-safetensors"),
              AllOf(HasSubstr("a.x_weight"), HasSubstr("ignore=")));
  EXPECT_THAT(refusal(with({"a.x_weight", DType::BF16, {2, 2}}), "ct-safetensors"), IsEmpty());
  EXPECT_THAT(
      refusal(with({"a.x_weight", DType::BF16, {2, 2}}), "fp8-safetensors@ignore=a.x_weight"),
      IsEmpty());
  EXPECT_THAT(refusal(with({"a.ln_1.weight", DType::BF16, {128}}), "ct-safetensors"),
              AllOf(HasSubstr("a.ln_1.weight"), HasSubstr("1 dimensions")));
  EXPECT_THAT(
      refusal(with({"a.v_proj.weight", DType::BF16, {2, 72}}), "ct-safetensors@scheme=W4A16"),
      AllOf(HasSubstr("a.v_proj.weight"), HasSubstr("[2, 72]")));
  EXPECT_THAT(refusal(with({"a.v_proj.weight", DType::F64, {2, 128}}), "ct-safetensors"),
              HasSubstr("F64"));
  EXPECT_THAT(refusal(with({"a.q_proj.weight_scale_inv", DType::F32, {1, 1}}),
                      "fp8-safetensors@ignore=a.q_proj.weight_scale_inv"),
              HasSubstr("a.q_proj.weight_scale_inv"));
  EXPECT_THAT(refusal(with({"b", DType::BF16, {2}}), "fp8-safetensors@exact=1"),
              HasSubstr("no FP4"));
  EXPECT_THAT(refusal(with({"b", DType::BF16, {2}}), "fp8-safetensors@block=tensor,scale=ue8m0"),
              HasSubstr("scale=ue8m0"));
  EXPECT_THAT(refusal(with({"b", DType::BF16, {2}}), "ct-safetensors@group=32"),
              HasSubstr("group= is for W4A16"));
  EXPECT_THAT(refusal(with({"b", DType::BF16, {2}}), "ct-safetensors@fuse=experts"),
              HasSubstr("fuse= is for NVFP4A16"));
}

TEST(QuantizingView, RefusesWeightsThatHaveTheFormAlready) {
  ModelCatalog model;
  model.shard("model.safetensors", {{"a.q_proj.weight", DType::F8E4M3, {4, 4}, true}});
  const auto catalog = model.build();
  EXPECT_THAT(refusal(catalog, "fp8-safetensors"),
              AllOf(HasSubstr("a.q_proj.weight"), HasSubstr("already")));
  const auto definition = define(catalog, "ct-safetensors");
  EXPECT_THAT(listed(*definition), ElementsAre("a.q_proj.weight F8_E4M3 quantized",
                                               "a.q_proj.weight_scale BF16 quantized"));
  EXPECT_THAT(definition->tool, HasSubstr("decoded to BF16"));
}

TEST(QuantizingView, ListsTiedHeadsThatTheToolForgets) {
  ModelCatalog model;
  model.shard("model.safetensors", {{"a.q_proj.weight", DType::BF16, {2, 128}}});
  model.config(R"({"tie_word_embeddings": true})");
  EXPECT_EQ(Json({"lm_head"}),
            config_of(*define(model.build(),
                              "fp8-safetensors"))["quantization_config"]["modules_to_not_convert"]);
}

TEST(QuantizingView, IsListedWhereTheSourceHasSomethingToQuantize) {
  const auto obstacles = [](const std::shared_ptr<const Catalog>& catalog, std::string_view view) {
    for (const ViewSummary& summary : list_views(catalog)) {
      if (summary.name == view) return summary.obstacles.size();
    }
    return std::size_t{99};
  };
  for (const char* view : {"fp8-safetensors", "ct-safetensors", "nf4-safetensors"}) {
    EXPECT_EQ(0U, obstacles(small_llama().build(), view)) << view;
    ModelCatalog norms;
    norms.shard("model.safetensors", {{"a.norm.weight", DType::BF16, {4}}});
    EXPECT_EQ(1U, obstacles(norms.build(), view)) << view;
  }
}

TEST(QuantizingView, HasOneCanonicalName) {
  const auto canonical = [](const char* spelling) {
    const auto spec = parse_view_spec(spelling);
    return spec ? spec->canonical() : spec.error().message();
  };
  EXPECT_EQ("fp8-safetensors", canonical("fp8-safetensors@block=128x128,scale=f32,exact=0"));
  EXPECT_EQ("fp8-safetensors@block=1x64", canonical("fp8-safetensors@block=1x64"));
  EXPECT_EQ("ct-safetensors", canonical("ct-safetensors@scheme=FP8_DYNAMIC,group=128"));
  for (const char* block : {"0x1", "01x1", "1x", "x1", "1x1x1", "-1x2", "99999999999x1", "row"}) {
    EXPECT_THAT(canonical(fmt::format("fp8-safetensors@block={}", block).c_str()),
                HasSubstr("ROWSxCOLUMNS"))
        << block;
  }
  EXPECT_THAT(canonical("ct-safetensors@group=0"), HasSubstr("whole number"));
  EXPECT_THAT(canonical("ct-safetensors@ignore=a/b"), HasSubstr("key=value"));
}

}  // namespace
}  // namespace ckfs
