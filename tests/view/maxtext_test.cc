// That no array of MaxText's trees can be missing without a word, one way or the other.
#include "view/maxtext.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <set>

#include "support/model_catalog.h"
#include "view/recipes/recipe.h"

namespace ckfs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Tensors = std::vector<TensorSpec>;

constexpr std::string_view kDeepSeekConfig = R"({"model_type": "deepseek_v32", "hidden_size": 8,
    "intermediate_size": 6, "moe_intermediate_size": 4, "num_attention_heads": 2, "q_lora_rank": 3,
    "kv_lora_rank": 5, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 3,
    "n_routed_experts": 2, "n_shared_experts": 1, "num_hidden_layers": 3,
    "first_k_dense_replace": 1, "num_nextn_predict_layers": 1, "index_n_heads": 2,
    "index_head_dim": 4, "vocab_size": 10})";

/// A layer with a dense MLP, two with experts, and one for multi-token prediction.
Tensors deepseek() {
  Tensors tensors;
  const auto add = [&](std::string name, std::vector<std::int64_t> shape) {
    tensors.push_back({std::move(name) + ".weight", DType::BF16, std::move(shape)});
  };
  const auto mlp = [&](const std::string& prefix, std::int64_t inner) {
    add(prefix + "gate_proj", {inner, 8});
    add(prefix + "up_proj", {inner, 8});
    add(prefix + "down_proj", {8, inner});
  };
  add("model.embed_tokens", {10, 8});
  add("model.norm", {8});
  add("lm_head", {10, 8});
  for (int i = 0; i < 4; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    add(layer + "input_layernorm", {8});
    add(layer + "post_attention_layernorm", {8});
    add(layer + "self_attn.q_a_proj", {3, 8});
    add(layer + "self_attn.q_a_layernorm", {3});
    add(layer + "self_attn.q_b_proj", {12, 3});
    add(layer + "self_attn.kv_a_layernorm", {5});
    add(layer + "self_attn.kv_a_proj_with_mqa", {7, 8});
    add(layer + "self_attn.kv_b_proj", {14, 5});
    add(layer + "self_attn.o_proj", {8, 6});
    add(layer + "self_attn.indexer.k_norm", {4});
    tensors.push_back({layer + "self_attn.indexer.k_norm.bias", DType::BF16, {4}});
    add(layer + "self_attn.indexer.weights_proj", {2, 8});
    add(layer + "self_attn.indexer.wk", {4, 8});
    add(layer + "self_attn.indexer.wq_b", {8, 3});
    if (i == 0) {
      mlp(layer + "mlp.", 6);
      continue;
    }
    for (int e = 0; e < 2; ++e) mlp(fmt::format("{}mlp.experts.{}.", layer, e), 4);
    mlp(layer + "mlp.shared_experts.", 4);
    add(layer + "mlp.gate", {2, 8});
  }
  for (const char* name : {"enorm", "hnorm", "shared_head.norm"}) {
    add(fmt::format("model.layers.3.{}", name), {8});
  }
  add("model.layers.3.eh_proj", {8, 16});
  add("model.layers.3.embed_tokens", {10, 8});
  add("model.layers.3.shared_head.head", {10, 8});
  return tensors;
}

constexpr std::string_view kLlama4Config = R"({"model_type": "llama4_text", "hidden_size": 8,
    "intermediate_size": 4, "intermediate_size_mlp": 6, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "num_local_experts": 2, "num_hidden_layers": 4,
    "vocab_size": 10})";

/// Layers with a dense MLP and with experts by turns.
Tensors llama4() {
  Tensors tensors;
  const auto add = [&](std::string name, std::vector<std::int64_t> shape) {
    tensors.push_back({std::move(name), DType::BF16, std::move(shape)});
  };
  const auto mlp = [&](const std::string& prefix, std::int64_t inner) {
    add(prefix + "gate_proj.weight", {inner, 8});
    add(prefix + "up_proj.weight", {inner, 8});
    add(prefix + "down_proj.weight", {8, inner});
  };
  add("model.embed_tokens.weight", {10, 8});
  add("model.norm.weight", {8});
  add("lm_head.weight", {10, 8});
  for (int i = 0; i < 4; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    add(layer + "input_layernorm.weight", {8});
    add(layer + "post_attention_layernorm.weight", {8});
    add(layer + "self_attn.q_proj.weight", {8, 8});
    add(layer + "self_attn.k_proj.weight", {4, 8});
    add(layer + "self_attn.v_proj.weight", {4, 8});
    add(layer + "self_attn.o_proj.weight", {8, 8});
    if (i % 2 == 0) {
      mlp(layer + "feed_forward.", 6);
      continue;
    }
    add(layer + "feed_forward.router.weight", {2, 8});
    add(layer + "feed_forward.experts.gate_up_proj", {2, 8, 8});
    add(layer + "feed_forward.experts.down_proj", {2, 4, 8});
    mlp(layer + "feed_forward.shared_expert.", 4);
  }
  return tensors;
}

/// Why the view cannot be had of the tensors but for some; empty: it can.
std::string refusal(std::string_view config, const Tensors& all, std::string_view view,
                    const std::set<std::string>& without = {}) {
  Tensors tensors;
  for (const TensorSpec& tensor : all) {
    if (!without.contains(tensor.name)) tensors.push_back(tensor);
  }
  ModelCatalog model;
  model.config(std::string(config)).shard("model.safetensors", tensors);
  const auto made = define_view(model.build(), *parse_view_spec(view));
  return made ? "" : made.error().message();
}

/// The name without the numbers of its layer and expert.
std::string kind_of(const std::string& name) {
  std::string kind;
  for (const char c : name) {
    if (c < '0' || c > '9') kind += c;
  }
  return kind;
}

/// Whatever is missing of one layer, or of all layers of its turn in `turns`, or of all.
/// `of_no_tree`: endings of names of which the view has nothing.
void expect_all_wanted(std::string_view config, const Tensors& all, std::string_view view,
                       const std::vector<std::set<int>>& turns,
                       const std::vector<std::string>& of_no_tree = {}) {
  ASSERT_EQ(refusal(config, all, view), "");
  std::set<std::set<std::string>> cases;
  for (const TensorSpec& tensor : all) {
    if (std::ranges::any_of(
            of_no_tree, [&](const std::string& ending) { return tensor.name.ends_with(ending); })) {
      continue;
    }
    cases.insert({tensor.name});
    for (const std::set<int>& turn : turns) {
      std::set<std::string> without;
      for (const TensorSpec& other : all) {
        const bool here = std::ranges::any_of(turn, [&](int layer) {
          return other.name.starts_with(fmt::format("model.layers.{}.", layer));
        });
        if (here && kind_of(other.name) == kind_of(tensor.name)) without.insert(other.name);
      }
      if (!without.empty()) cases.insert(std::move(without));
    }
  }
  for (const std::set<std::string>& without : cases) {
    EXPECT_NE(refusal(config, all, view, without), "")
        << fmt::format("{}", fmt::join(without, " "));
  }
}

TEST(MaxTextViews, WantEveryParameterOfEveryLayer) {
  const std::vector<std::string> shared{".3.embed_tokens.weight", ".shared_head.head.weight"};
  expect_all_wanted(kDeepSeekConfig, deepseek(), "maxtext-unscanned@mtp=1",
                    {{0}, {1, 2}, {3}, {0, 1, 2}, {1, 2, 3}}, shared);
  expect_all_wanted(kDeepSeekConfig, deepseek(), "maxtext-scanned@mtp=1", {{0}, {1, 2}, {3}},
                    shared);
  expect_all_wanted(
      kDeepSeekConfig, deepseek(), "maxtext-unscanned@maxtext=0.2.3,mtp=1", {{0}, {1, 2}, {3}},
      {".3.embed_tokens.weight", ".shared_head.head.weight", ".shared_head.norm.weight"});
  expect_all_wanted(kLlama4Config, llama4(), "maxtext-unscanned", {{0, 2}, {1, 3}, {0, 1, 2, 3}});
  expect_all_wanted(kLlama4Config, llama4(), "maxtext-scanned", {{0, 2}, {1, 3}});
}

TEST(MaxTextViews, LeaveOutWhatIsNoWeight) {
  Tensors tensors = llama4();
  tensors.push_back({"model.freqs_cis", DType::C128, {4, 4}});
  EXPECT_EQ(refusal(kLlama4Config, tensors, "maxtext-unscanned"), "");
}

TEST(MaxTextViews, NameWhatIsMissing) {
  EXPECT_THAT(refusal(kDeepSeekConfig, deepseek(), "maxtext-unscanned",
                      {"model.layers.0.mlp.down_proj.weight"}),
              HasSubstr("no tensor fits \"params.params.decoder.dense_layers_{i}.mlp.wo.kernel\""));
  EXPECT_THAT(refusal(kDeepSeekConfig, deepseek(), "maxtext-unscanned",
                      {"model.layers.0.self_attn.o_proj.weight"}),
              HasSubstr("i 0 is missing, of 3"));
  EXPECT_THAT(refusal(kLlama4Config, llama4(), "maxtext-unscanned",
                      {"model.layers.1.feed_forward.router.weight"}),
              HasSubstr("i 1 is missing, of 4"));
}

TEST(MaxTextTrees, HaveNoArrayBesideThemThatNobodyKnows) {
  ModelCatalog source;
  source.config(std::string(kLlama4Config)).shard("model.safetensors", llama4());
  const auto definition = define_view(source.build(), *parse_view_spec("maxtext-unscanned"));
  ASSERT_TRUE(definition) << definition.error().message();
  const auto refusal_with = [&](std::string_view prefix, const std::vector<std::string>& others) {
    Tensors tensors;
    for (const ModelTensor& tensor : (*definition)->tensors) {
      const std::string_view path = tensor.name.substr(std::string_view("params.params.").size());
      tensors.push_back({fmt::format("{}{}", prefix, path),
                         DType::BF16,
                         {tensor.expr.shape().begin(), tensor.expr.shape().end()}});
    }
    for (const std::string& other : others) tensors.push_back({other, DType::BF16, {2}});
    ModelCatalog tree;
    tree.config(std::string(kLlama4Config)).state(tensors);
    const auto made = define_view(tree.build(), *parse_view_spec("bf16-safetensors"));
    return made ? "" : made.error().message();
  };
  const std::vector<std::string> state{"step", "opt_state.mu.decoder.x", "optimizer.step",
                                       "rngs.a"};
  EXPECT_EQ(refusal_with("", state), "");
  EXPECT_EQ(refusal_with("params.params.", state), "");
  // The towers are all there, or not.
  EXPECT_THAT(refusal_with("", {"vision_encoder.x"}),
              HasSubstr("no tensor fits \"params.params.vision_encoder."));
  EXPECT_THAT(refusal_with("", {"extra"}), HasSubstr("not an array that the rules know"));
}

// Releases of MaxText whose trees differ.

constexpr std::string_view kBias =
    "params.params.decoder.moe_layers.DeepSeekMoeBlock_0.MoeBlock_0.gate.bias";
constexpr std::string_view kFinalNorm =
    "params.params.mtp_block.mtp_layer_1.mtp_1_final_norm.scale";

/// deepseek() with a router's bias, with `experts` experts in each of two layers.
class Routed {
 public:
  explicit Routed(int experts) : config_(kDeepSeekConfig) {
    const std::string was = "\"n_routed_experts\": 2";
    config_.replace(config_.find(was), was.size(),
                    fmt::format("\"n_routed_experts\": {}", experts));
    for (const TensorSpec& tensor : deepseek()) {
      if (tensor.name.ends_with(".mlp.gate.weight")) {
        tensors_.push_back({tensor.name, DType::BF16, {experts, 8}});
        const std::string gate = tensor.name.substr(0, tensor.name.rfind('.'));
        tensors_.push_back({gate + ".e_score_correction_bias", DType::F32, {experts}});
        continue;
      }
      const std::size_t first = tensor.name.find(".experts.0.");
      if (tensor.name.find(".experts.1.") != std::string::npos) continue;
      tensors_.push_back(tensor);
      for (int e = 1; first != std::string::npos && e < experts; ++e) {
        tensors_.push_back(tensor);
        tensors_.back().name.replace(first, 11, fmt::format(".experts.{}.", e));
      }
    }
  }

  std::shared_ptr<const Catalog> model() const {
    ModelCatalog model;
    model.config(config_).shard("model.safetensors", tensors_);
    return model.build();
  }
  /// The tree that the view of the model is, as a source.
  std::shared_ptr<const Catalog> tree(std::string_view view) const {
    Tensors arrays;
    const auto definition = define(model(), view);
    CKFS_CHECK(definition != nullptr);
    for (const ModelTensor& tensor : definition->tensors) {
      arrays.push_back({std::string(tensor.name),
                        tensor.expr.dtype(),
                        {tensor.expr.shape().begin(), tensor.expr.shape().end()}});
    }
    ModelCatalog tree;
    tree.config(config_).state(arrays);
    return tree.build();
  }

 private:
  std::string config_;
  Tensors tensors_;
};

const ModelTensor* find(const std::shared_ptr<const Definition>& definition,
                        std::string_view name) {
  if (definition == nullptr) return nullptr;
  const auto tensor = std::ranges::find(definition->tensors, name, &ModelTensor::name);
  return tensor == definition->tensors.end() ? nullptr : &*tensor;
}

std::vector<std::int64_t> shape_of(const std::shared_ptr<const Definition>& definition,
                                   std::string_view name) {
  const ModelTensor* tensor = find(definition, name);
  if (tensor == nullptr) return {};
  return {tensor->expr.shape().begin(), tensor->expr.shape().end()};
}

std::string error_of(const std::shared_ptr<const Catalog>& catalog, std::string_view view) {
  const auto made = define_view(catalog, *parse_view_spec(view));
  return made ? "" : made.error().message();
}

TEST(MaxTextReleases, StackARoutersBiasAlongDimensionsOfTheirOwn) {
  const auto model = Routed(3).model();
  EXPECT_THAT(shape_of(define(model, "maxtext-scanned"), kBias), ElementsAre(2, 3));
  EXPECT_THAT(shape_of(define(model, "maxtext-scanned@maxtext=0.2.5"), kBias), ElementsAre(2, 3));
  EXPECT_THAT(shape_of(define(model, "maxtext-scanned@maxtext=0.2.3"), kBias), ElementsAre(3, 2));
  EXPECT_EQ(parse_view_spec("maxtext-scanned@maxtext=0.2.5")->canonical(), "maxtext-scanned");
  EXPECT_THAT(parse_view_spec("maxtext-scanned@maxtext=0.2.4").error().message(),
              HasSubstr("\"0.2.4\" is not one of: 0.2.5, 0.2.3"));
}

TEST(MaxTextReleases, HaveANormOfTheirOwnForMultiTokenPrediction) {
  const auto model = Routed(3).model();
  EXPECT_THAT(shape_of(define(model, "maxtext-unscanned@mtp=1"), kFinalNorm), ElementsAre(8));
  EXPECT_EQ(find(define(model, "maxtext-unscanned"), kFinalNorm), nullptr);
  EXPECT_EQ(find(define(model, "maxtext-unscanned@maxtext=0.2.3,mtp=1"), kFinalNorm), nullptr);
}

TEST(MaxTextReleases, AreKnownByTheShapesOfATree) {
  for (const std::string mtp : {"", ",mtp=1"}) {
    for (const std::string release : {"0.2.5", "0.2.3"}) {
      SCOPED_TRACE(release + mtp);
      const std::string other = release == "0.2.5" ? "0.2.3" : "0.2.5";
      const auto tree = Routed(3).tree("maxtext-scanned@maxtext=" + release + mtp);
      const auto model = define(tree, "bf16-safetensors");
      EXPECT_THAT(shape_of(model, "model.layers.1.mlp.gate.e_score_correction_bias"),
                  ElementsAre(3));
      const auto said = define(tree, "bf16-safetensors@maxtext=" + release);
      ASSERT_NE(said, nullptr);
      EXPECT_EQ(said->spec.canonical(), "bf16-safetensors");
      EXPECT_EQ(error_of(tree, "bf16-safetensors@maxtext=" + other),
                fmt::format("bf16-safetensors: maxtext={}: the arrays are a tree of MaxText {}",
                            other, release));
      // Of a layer for multi-token prediction, all that the release has.
      EXPECT_EQ(find(model, "model.layers.3.shared_head.norm.weight") != nullptr,
                release == "0.2.5" && !mtp.empty());
    }
  }
}

TEST(MaxTextReleases, AreNotKnownWhereThereAreAsManyExpertsAsLayers) {
  const auto tree = Routed(2).tree("maxtext-scanned@maxtext=0.2.3");
  const auto boxes = [&](std::string_view view) {
    const auto definition = define(tree, view);
    const ModelTensor* bias = find(definition, "model.layers.1.mlp.gate.e_score_correction_bias");
    CKFS_CHECK(bias != nullptr);
    return bias->expr.boxes().front().loops.front().source_stride;
  };
  EXPECT_EQ(boxes("bf16-safetensors"), 1);  // a row of (layers, experts)
  EXPECT_EQ(boxes("bf16-safetensors@maxtext=0.2.5"), 1);
  EXPECT_EQ(boxes("bf16-safetensors@maxtext=0.2.3"), 2);  // a column of (experts, layers)
  EXPECT_EQ(define(tree, "bf16-safetensors@maxtext=0.2.5")->spec.canonical(), "bf16-safetensors");
  EXPECT_EQ(define(tree, "bf16-safetensors@maxtext=0.2.3")->spec.canonical(),
            "bf16-safetensors@maxtext=0.2.3");
  // It is kept as it is, whichever it is taken for.
  for (const std::string_view view : {"maxtext-scanned", "maxtext-scanned@maxtext=0.2.3"}) {
    const auto same = define(tree, view);
    ASSERT_NE(find(same, kBias), nullptr);
    EXPECT_EQ(find(same, kBias)->expr.boxes().front().loops.back().source_stride, 1) << view;
  }
}

TEST(MaxTextReleases, AreMadeOfTheTreesOfOthers) {
  const auto old = Routed(3).tree("maxtext-scanned@maxtext=0.2.3,mtp=1");
  const auto recent = Routed(3).tree("maxtext-scanned@mtp=1");
  for (const auto& tree : {old, recent}) {
    EXPECT_THAT(shape_of(define(tree, "maxtext-scanned"), kBias), ElementsAre(2, 3));
    EXPECT_THAT(shape_of(define(tree, "maxtext-scanned@maxtext=0.2.3"), kBias), ElementsAre(3, 2));
    EXPECT_THAT(shape_of(define(tree, "maxtext-scanned"), kFinalNorm), IsEmpty());
  }
  EXPECT_NE(find(define(recent, "maxtext-unscanned@mtp=1"), kFinalNorm), nullptr);
  EXPECT_EQ(find(define(recent, "maxtext-unscanned@maxtext=0.2.3,mtp=1"), kFinalNorm), nullptr);
  EXPECT_NE(define(old, "maxtext-unscanned@maxtext=0.2.3,mtp=1"), nullptr);
  EXPECT_THAT(error_of(old, "maxtext-unscanned@mtp=1"),
              HasSubstr("maxtext=0.2.5: the arrays are a tree of MaxText 0.2.3: "
                        "maxtext_deepseek.json:"));
  // What is only moved is not taken apart.
  const auto definition = define(old, "maxtext-scanned@dtype=source");
  for (const ModelTensor& tensor : definition->tensors) {
    EXPECT_EQ(tensor.expr.boxes().size(), 1u) << tensor.name;
  }
}

TEST(MaxTextReleases, AreInTheRemarks) {
  const auto remarks = [](const std::shared_ptr<const Catalog>& catalog) {
    std::map<std::string, std::string> found;
    for (const ViewSummary& view : list_views(catalog)) {
      for (const Note& remark : view.remarks) {
        if (remark.subject == "maxtext") found[view.name] = remark.text;
      }
    }
    return found;
  };
  using Remarks = std::map<std::string, std::string>;
  const std::string differ = "releases of MaxText differ here: @maxtext= is one of 0.2.5, 0.2.3";
  EXPECT_EQ(remarks(Routed(3).model()),
            (Remarks{{"maxtext-scanned", differ}, {"maxtext-unscanned", differ}}));
  const auto of_all = [](const std::string& text) {
    Remarks all;
    for (const char* view :
         {"bf16-safetensors", "fp16-safetensors", "fp32-safetensors", "fp32-consolidated",
          "maxtext-scanned", "maxtext-unscanned", "megatron-torch-dist", "dcp"}) {
      all[view] = text;
    }
    return all;
  };
  EXPECT_EQ(remarks(Routed(3).tree("maxtext-scanned@maxtext=0.2.3")),
            of_all("the source is a tree of MaxText 0.2.3"));
  EXPECT_EQ(remarks(Routed(2).tree("maxtext-scanned")),
            of_all("the source fits MaxText 0.2.5 and 0.2.3 alike, and is taken for a tree of "
                   "0.2.5, unless @maxtext= says another"));
  // Where each layer has its own, all releases have one tree.
  EXPECT_EQ(remarks(Routed(2).tree("maxtext-unscanned")), Remarks());
}

TEST(MaxTextReleases, AreNoMatterOfOtherSources) {
  EXPECT_EQ(error_of(Routed(3).model(), "bf16-safetensors@maxtext=0.2.3"),
            "bf16-safetensors: maxtext=0.2.3: the source is not a tree of MaxText");
  ModelCatalog model;
  model.config(std::string(kLlama4Config)).shard("model.safetensors", llama4());
  EXPECT_NE(define(model.build(), "maxtext-scanned@maxtext=0.2.3"), nullptr);
}

TEST(MaxTextReleases, AreRefusedWhereTheFamilyHasNoRulesForThem) {
  const auto with = [](std::string_view releases) {
    return add_recipe(Recipes(),
                      fmt::format(R"({{"family": ["m"], "maxtext": {{"models": ["m"],
      "releases": {},
      "unscanned": [
        {{"take": "n", "give": "params.params.decoder.decoder_norm.scale"}}],
      "scanned": [{{"drop": "none", "optional": true}}]}}}})",
                                  releases),
                      "f");
  };
  Recipes recipes = with(R"(["0.2.5"])").value();
  recipes.family = "m";
  ModelCatalog model, tree;
  model.shard("model.safetensors", {{"n", DType::BF16, {8}}});
  tree.state({{"params.params.decoder.decoder_norm.scale", DType::BF16, {8}}});
  const auto plain = model.build(), arrays = tree.build();
  const auto refusal = [&](const std::shared_ptr<const Catalog>& catalog, std::string_view view) {
    const auto made = define_view(catalog, *parse_view_spec(view), recipes);
    return made ? "" : made.error().message();
  };
  EXPECT_EQ(refusal(plain, "maxtext-scanned"), "");
  EXPECT_EQ(refusal(plain, "maxtext-scanned@maxtext=0.2.3"),
            "maxtext-scanned: maxtext=0.2.3: f has rules for MaxText 0.2.5 alone");
  EXPECT_EQ(refusal(arrays, "maxtext-scanned"), "");
  EXPECT_EQ(refusal(arrays, "maxtext-scanned@maxtext=0.2.3"),
            "maxtext-scanned: maxtext=0.2.3: the arrays are a tree of MaxText 0.2.5: f has no "
            "rules for the other");
  for (const std::string_view bad : {"[]", R"(["0.2.4"])", R"(["0.2.5", "0.2.5"])", "5"}) {
    const auto made = with(bad);
    ASSERT_FALSE(made) << bad;
    EXPECT_EQ(made.error().code(), ErrorCode::Corrupt) << bad;
  }
}

TEST(MaxText, BytesInAnotherOrderAreNoCodesAndNotRounded) {
  Tensors tensors = llama4();
  for (TensorSpec& tensor : tensors) {
    tensor.dtype = DType::F32;
    tensor.big_endian = true;
  }
  for (const std::string_view view :
       {"maxtext-unscanned@dtype=fp32", "maxtext-unscanned@dtype=source"}) {
    ModelCatalog model;
    model.config(std::string(kLlama4Config)).shard("model.safetensors", tensors);
    const auto definition = define(model.build(), view);
    ASSERT_NE(definition, nullptr);
    for (const ModelTensor& tensor : definition->tensors) {
      EXPECT_EQ(tensor.expr.dtype(), DType::F32) << tensor.name;
      EXPECT_EQ(tensor.exactness, Exactness::BitExact) << tensor.name;
    }
  }
}

TEST(MaxTextTrees, AreNotCutByTheAxesOfAnotherShape) {
  Recipes recipes = add_recipe(Recipes(), R"({"family": ["m"], "maxtext": {"models": ["m"],
      "unscanned": [
        {"take": "e", "give": "params.params.e", "axes": ["vocab"], "back": [{"reshape": [-1]}]},
        {"take": "n", "give": "params.params.decoder.decoder_norm.scale", "axes": ["norm"]}],
      "scanned": [{"drop": "none", "optional": true}]}})",
                               "f")
                        .value();
  recipes.family = "m";
  ModelCatalog tree;
  tree.state({{"params.params.e", DType::BF16, {10, 8}},
              {"params.params.decoder.decoder_norm.scale", DType::BF16, {8}}});
  const auto catalog = tree.build();
  EXPECT_TRUE(define_view(catalog, *parse_view_spec("maxtext-unscanned"), recipes));
  const auto made = define_view(catalog, *parse_view_spec("maxtext-unscanned@fsdp=2"), recipes);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), ErrorCode::Unsupported);
  EXPECT_THAT(made.error().message(),
              HasSubstr("f: \"params.params.e\": shape [10, 8], but what the rules undo and do "
                        "again has [80]"));
}

}  // namespace
}  // namespace ckfs
