// torchtitan's names: that each family's two ways undo each other, and which sources are read so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/model_catalog.h"
#include "view/program_names.h"
#include "view/recipes/recipe.h"

namespace ckfs {
namespace {

using testing::HasSubstr;
using Shape = std::vector<std::int64_t>;

/// The tensors of a small model of a family, in Hugging Face's names.
class Model {
 public:
  Model(std::string family, std::string config) : config_(std::move(config)) {
    config_.insert(1, fmt::format(R"("model_type": "{}", "num_hidden_layers": 2, "hidden_size": 8,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 11,
      "intermediate_size": 6, )",
                                  family));
    add("model.embed_tokens.weight", {11, 8});
    add("model.norm.weight", {8});
  }

  Model& add(const std::string& name, const Shape& shape, DType dtype = DType::F32) {
    tensors_.push_back({.name = name, .dtype = dtype, .shape = shape});
    return *this;
  }
  Model& head() { return add("lm_head.weight", {11, 8}); }

  Model& norms(int i) {
    return at(i, "input_layernorm.weight", {8}).at(i, "post_attention_layernorm.weight", {8});
  }
  Model& attention(int i) {
    return at(i, "self_attn.q_proj.weight", {16, 8})
        .at(i, "self_attn.k_proj.weight", {8, 8})
        .at(i, "self_attn.v_proj.weight", {8, 8})
        .at(i, "self_attn.o_proj.weight", {8, 16});
  }
  Model& qk_norms(int i) {
    return at(i, "self_attn.q_norm.weight", {4}).at(i, "self_attn.k_norm.weight", {4});
  }
  Model& mlp(int i) {
    return at(i, "mlp.gate_proj.weight", {6, 8})
        .at(i, "mlp.up_proj.weight", {6, 8})
        .at(i, "mlp.down_proj.weight", {8, 6});
  }
  /// Three experts of five.
  Model& experts(int i) {
    for (int e = 0; e < 3; ++e) {
      at(i, fmt::format("mlp.experts.{}.gate_proj.weight", e), {5, 8});
      at(i, fmt::format("mlp.experts.{}.up_proj.weight", e), {5, 8});
      at(i, fmt::format("mlp.experts.{}.down_proj.weight", e), {8, 5});
    }
    return at(i, "mlp.gate.weight", {3, 8});
  }
  Model& at(int i, const std::string& name, const Shape& shape, DType dtype = DType::F32) {
    return add(fmt::format("model.layers.{}.{}", i, name), shape, dtype);
  }

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const std::string& config() const { return config_; }

 private:
  std::string config_;
  std::vector<TensorSpec> tensors_;
};

Model llama(const std::string& config = "{\"x\": 0}") {
  Model model("llama", config);
  for (int i = 0; i < 2; ++i) model.norms(i).attention(i).mlp(i);
  return model;
}

Model qwen3() {
  Model model("qwen3", R"({"tie_word_embeddings": false})");
  model.head();
  for (int i = 0; i < 2; ++i) model.norms(i).attention(i).qk_norms(i).mlp(i);
  return model;
}

/// `count`: how config.json calls the number of experts; transformers 5 has another name for it.
Model qwen3_moe(const std::string& count) {
  Model model("qwen3_moe", fmt::format(R"({{"{}": 3, "moe_intermediate_size": 5}})", count));
  model.head();
  for (int i = 0; i < 2; ++i) model.norms(i).attention(i).qk_norms(i);
  model.mlp(0).experts(1);
  return model;
}

/// With a low-rank query or without, and one layer for multi-token prediction.
Model deepseek(bool low_rank) {
  Model model("deepseek_v3", fmt::format(R"({{"n_routed_experts": 3, "moe_intermediate_size": 5,
                "n_shared_experts": 2, "q_lora_rank": {}, "kv_lora_rank": 7, "qk_nope_head_dim": 3,
                "qk_rope_head_dim": 2, "v_head_dim": 6, "num_nextn_predict_layers": 1}})",
                                         low_rank ? "9" : "null"));
  model.head();
  for (int i = 0; i < 3; ++i) {
    model.norms(i)
        .at(i, "self_attn.kv_a_proj_with_mqa.weight", {9, 8})
        .at(i, "self_attn.kv_a_layernorm.weight", {7})
        .at(i, "self_attn.kv_b_proj.weight", {36, 7})
        .at(i, "self_attn.o_proj.weight", {8, 24});
    if (low_rank) {
      model.at(i, "self_attn.q_a_proj.weight", {9, 8})
          .at(i, "self_attn.q_a_layernorm.weight", {9})
          .at(i, "self_attn.q_b_proj.weight", {20, 9});
    } else {
      model.at(i, "self_attn.q_proj.weight", {20, 8});
    }
    if (i == 0) {
      model.mlp(i);
      continue;
    }
    model.experts(i)
        .at(i, "mlp.gate.e_score_correction_bias", {3})
        .at(i, "mlp.shared_experts.gate_proj.weight", {10, 8})
        .at(i, "mlp.shared_experts.up_proj.weight", {10, 8})
        .at(i, "mlp.shared_experts.down_proj.weight", {8, 10});
  }
  return model.at(2, "eh_proj.weight", {8, 16})
      .at(2, "enorm.weight", {8})
      .at(2, "hnorm.weight", {8})
      .at(2, "shared_head.norm.weight", {8});
}

Model gpt_oss() {
  Model model("gpt_oss", R"({"num_local_experts": 3})");
  model.head();
  for (int i = 0; i < 2; ++i) {
    model.norms(i)
        .attention(i)
        .at(i, "self_attn.q_proj.bias", {16})
        .at(i, "self_attn.k_proj.bias", {8})
        .at(i, "self_attn.v_proj.bias", {8})
        .at(i, "self_attn.o_proj.bias", {8})
        .at(i, "self_attn.sinks", {4})
        .at(i, "mlp.router.weight", {3, 8})
        .at(i, "mlp.router.bias", {3})
        .at(i, "mlp.experts.gate_up_proj", {3, 8, 12})
        .at(i, "mlp.experts.gate_up_proj_bias", {3, 12})
        .at(i, "mlp.experts.down_proj", {3, 6, 8})
        .at(i, "mlp.experts.down_proj_bias", {3, 8});
  }
  return model;
}

TensorList stored(const Catalog& catalog) {
  TensorList list;
  for (const TensorId id : catalog.shards().front().tensors) {
    list.tensors.push_back(
        {.name = catalog.tensor(id).name, .expr = TensorExpr::stored(catalog, id)});
  }
  return list;
}

const ProgramRules& names_of(const ConfigNumbers& config) {
  const ProgramRules* const rules = built_in_recipes().find_program("torchtitan", config);
  CKFS_CHECK(rules != nullptr);
  return *rules;
}

Result<TensorList> written(const Model& model, const Catalog& catalog) {
  const ConfigNumbers config = ConfigNumbers::parse(model.config(), "config.json").value();
  return apply_rules(names_of(config).write, config, stored(catalog));
}

/// The names that torchtitan has for the model.
std::vector<std::string> titan_names(const Model& model) {
  ModelCatalog source;
  source.state(model.tensors());
  const auto list = written(model, *source.build());
  if (!list) return {list.error().message()};
  std::vector<std::string> names;
  for (const ModelTensor& tensor : list->tensors) names.emplace_back(tensor.name);
  return names;
}

void expect_both_ways(const Model& model) {
  ModelCatalog source;
  source.state(model.tensors());
  const auto catalog = source.build();
  const ConfigNumbers config = ConfigNumbers::parse(model.config(), "config.json").value();
  auto there = written(model, *catalog);
  ASSERT_TRUE(there) << there.error().message();
  const auto back = apply_rules(names_of(config).read, config, *std::move(there));
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(back->tensors.size(), model.tensors().size());
  for (const ModelTensor& tensor : back->tensors) {
    const auto id = catalog->find(tensor.name);
    ASSERT_TRUE(id) << tensor.name;
    EXPECT_TRUE(std::ranges::equal(tensor.expr.shape(), catalog->tensor(*id).shape)) << tensor.name;
    EXPECT_EQ(tensor.expr.boxes(), TensorExpr::stored(*catalog, *id).boxes()) << tensor.name;
  }
}

TEST(TorchTitan, BothWaysOfEachFamilyUndoEachOther) {
  Model with_head = llama();
  expect_both_ways(with_head.head());
  expect_both_ways(llama(R"({"tie_word_embeddings": true})"));
  expect_both_ways(qwen3());
  expect_both_ways(qwen3_moe("num_experts"));
  expect_both_ways(qwen3_moe("num_local_experts"));
  expect_both_ways(deepseek(true));
  expect_both_ways(deepseek(false));
  expect_both_ways(gpt_oss());
}

TEST(TorchTitan, HasItsOwnNames) {
  const auto names = titan_names(deepseek(true));
  for (const char* const name :
       {"tok_embeddings.weight", "layers.0.feed_forward.w2.weight",
        "layers.1.attention.q_norm.weight", "layers.1.moe.expert_bias_E",
        "layers.1.moe.routed_experts.inner_experts.w2_EDF", "layers.1.moe.shared_experts.w3.weight",
        "mtp_layers.0.mtp_norm.weight", "mtp_layers.0.attention.wkv_a.weight", "norm.weight",
        "lm_head.weight"}) {
    EXPECT_THAT(names, testing::Contains(name));
  }
}

TEST(TorchTitan, StoresATiedHeadBesideItsEmbedding) {
  const auto names = titan_names(llama(R"({"tie_word_embeddings": true})"));
  EXPECT_THAT(names, testing::Contains("lm_head.weight"));
  EXPECT_THAT(names, testing::Contains("tok_embeddings.weight"));
}

/// What `read` makes of tensors by these names, or its error.
std::string read(const std::string& config, const std::vector<TensorSpec>& tensors) {
  ModelCatalog source;
  source.state(tensors);
  const auto catalog = source.build();
  const ConfigNumbers numbers = ConfigNumbers::parse(config, "config.json").value();
  const auto list = apply_rules(names_of(numbers).read, numbers, stored(*catalog));
  if (!list) return list.error().message();
  std::vector<std::string> names;
  for (const ModelTensor& tensor : list->tensors) names.emplace_back(tensor.name);
  std::ranges::sort(names);
  return fmt::format("{}", fmt::join(names, " "));
}

/// torchtitan's tensors of a llama of one layer.
std::vector<TensorSpec> titan_llama(const std::string& qkv = "attention.qkv_linear.",
                                    const std::string& head = "lm_head.weight") {
  const auto f32 = [](std::string name, Shape shape) {
    return TensorSpec{.name = std::move(name), .dtype = DType::F32, .shape = std::move(shape)};
  };
  return {f32("tok_embeddings.weight", {11, 8}),
          f32("norm.weight", {8}),
          f32(head, {11, 8}),
          f32("layers.0.attention_norm.weight", {8}),
          f32("layers.0.ffn_norm.weight", {8}),
          f32("layers.0." + qkv + "wq.weight", {16, 8}),
          f32("layers.0." + qkv + "wk.weight", {8, 8}),
          f32("layers.0." + qkv + "wv.weight", {8, 8}),
          f32("layers.0.attention.wo.weight", {8, 16}),
          f32("layers.0.feed_forward.w1.weight", {6, 8}),
          f32("layers.0.feed_forward.w2.weight", {8, 6}),
          f32("layers.0.feed_forward.w3.weight", {6, 8})};
}

constexpr std::string_view kLlama =
    R"({"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 11, "intermediate_size": 6})";

TEST(TorchTitan, EarlierNamesAreReadAsTheSameTensors) {
  const std::string today = read(std::string(kLlama), titan_llama());
  EXPECT_THAT(today, HasSubstr("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_EQ(today, read(std::string(kLlama), titan_llama("attention.", "output.weight")));
}

TEST(TorchTitan, WhatDoesNotFitTheModelIsAnError) {
  auto tensors = titan_llama();
  tensors[5].shape = {12, 8};
  EXPECT_THAT(read(std::string(kLlama), tensors),
              HasSubstr("layers.0.attention.wq.weight\": has shape [12, 8]"));
  tensors = titan_llama();
  tensors.push_back({.name = "layers.1.attention_norm.weight", .shape = {8}});
  EXPECT_THAT(read(std::string(kLlama), tensors), HasSubstr("\"layers.1."));
  tensors = titan_llama();
  tensors.erase(tensors.begin() + 9);
  EXPECT_THAT(read(std::string(kLlama), tensors), HasSubstr("mlp.gate_proj.weight"));
}

TEST(TorchTitan, ATensorThatNoRuleTakesIsAnError) {
  auto tensors = titan_llama();
  tensors.push_back({.name = "layers.0.attention.qkv_linear.wq.bias", .shape = {16}});
  EXPECT_THAT(read(std::string(kLlama), tensors), HasSubstr("wq.bias\""));
  tensors.back().name = "layers.0.gate.weight";
  EXPECT_THAT(read(std::string(kLlama), tensors), HasSubstr("layers.0.gate.weight\""));
  for (Model more : {qwen3(), qwen3_moe("num_experts"), gpt_oss()}) {
    EXPECT_THAT(titan_names(more.at(0, "self_attn.o_proj.scale", {8})),
                testing::ElementsAre(HasSubstr("layers.0.self_attn.o_proj.scale\"")));
  }
}

TEST(TorchTitan, NamesAloneAreNoSuchSource) {
  // A file of Meta's, which has them too, is shown as it is.
  ModelCatalog source;
  source.state(titan_llama("attention.", "output.weight")).config(std::string(kLlama));
  const auto catalog = source.build();
  EXPECT_EQ(program_of(*catalog), "");
}

}  // namespace
}  // namespace ckfs
