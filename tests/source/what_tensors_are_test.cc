// What a tensor of a Hugging Face checkpoint is said to be: a table of the names under which tools
// store weights, each with what must become of every tensor. What is neither decoded, left out nor
// refused is shown as it is stored, and called bit-exact: so it must not be codes.
#include "source/hf/scale_names.h"
#include "source/test_model.h"

namespace ckfs {
namespace {

using test_model::Config;
using test_model::Quantized;
using test_model::Shape;
using test_model::Tensors;
using test_model::text_of;

using Names = std::vector<std::string>;

/// What is said of each tensor; those that are not named are shown as they are stored.
struct Said {
  Names decoded = {};  // by the name that views have
  Names left_out = {};
  Names refused = {};
};

struct Row {
  std::string what;
  Tensors tensors;
  Config config;
  Said said;
};

constexpr DType kI8 = DType::I8, kU8 = DType::U8, kI32 = DType::I32, kI64 = DType::I64,
                kF8 = DType::F8E4M3, kF16 = DType::F16, kBf16 = DType::BF16, kF32 = DType::F32;

Config method(const std::string& name) {
  return {{"quant_method", "\"" + name + "\""}};
}

Said said_of(const Row& row) {
  const Quantized result(row.tensors, row.config.empty() ? "" : text_of(row.config));
  Said said;
  const auto obstacles = result.obstacles();
  for (const auto& [name, reason] : obstacles) said.refused.push_back(name);
  std::size_t id = 0;
  for (const auto& [name, tensor] : row.tensors) {
    if (result.companions[id++]) said.left_out.push_back(name);
  }
  for (const StoredTensor& tensor : result.catalog->tensors()) {
    if (result.encoding(std::string(tensor.name)).is_quantized()) {
      said.decoded.emplace_back(tensor.name);
    }
  }
  // A checkpoint with an obstacle is never called plain.
  EXPECT_TRUE(obstacles.empty() || result.catalog->is_quantized());
  return said;
}

void expect_said(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    SCOPED_TRACE(row.what);
    const Said said = said_of(row);
    EXPECT_EQ(said.decoded, row.said.decoded);
    EXPECT_EQ(said.left_out, row.said.left_out);
    EXPECT_EQ(said.refused, row.said.refused);
  }
}

/// Codes of tools that no scheme knows, by their names alone.
const std::vector<Row>& unknown_codes() {
  static const std::vector<Row> rows = {
      {"fused experts under names of their own",
       {{"e.up", {kU8, {2, 8, 16}, ""}}, {"e.up_weight_scale", {kU8, {2, 8, 1}, ""}}},
       {},
       {.refused = {"e.up"}}},
      {"HQQ",
       {{"m.W_q", {kU8, {8, 16}, ""}},
        {"m.scale", {kF16, {8, 1}, ""}},
        {"m.zero", {kF16, {8, 1}, ""}}},
       {},
       {.refused = {"m.W_q"}}},
      {"HQQ in a column",
       {{"m.W_q", {kI32, {128}, ""}}, {"m.scale", {kF16, {8, 1}, ""}}},
       {},
       {.refused = {"m.W_q"}}},
      {"AQLM",
       {{"m.codes", {kI8, {8, 2, 1}, ""}},
        {"m.codebooks", {kF16, {1, 256, 1, 8}, ""}},
        {"m.scales", {kF16, {8, 1, 1, 1}, ""}}},
       {},
       {.refused = {"m.codes"}}},
      {"VPTQ",
       {{"m.indices", {kI32, {1, 8, 4}, ""}},
        {"m.centroids.weight", {kF16, {1, 64}, ""}},
        {"m.weight_scale", {kF16, {16}, ""}},
        {"m.weight_bias", {kF16, {16}, ""}}},
       {},
       {.refused = {"m.indices"}}},
      {"HIGGS",
       {{"m.weight", {DType::I16, {8, 4}, ""}},
        {"m.scales", {kF16, {8, 1}, ""}},
        {"m.tables", {kF16, {16, 2}, ""}}},
       {},
       {.refused = {"m.weight"}}},
      {"EETQ",
       {{"m.weight", {kI8, {16, 8}, ""}}, {"m.weight_scales", {kF16, {8}, ""}}},
       {},
       {.refused = {"m.weight"}}},
      {"BitNet",
       {{"m.weight", {kU8, {4, 16}, ""}}, {"m.weight_scale", {kBf16, {1}, ""}}},
       {},
       {.refused = {"m.weight"}}},
      {"QuIP#",
       {{"m.Qidxs", {kI64, {8, 4}, ""}}, {"m.SU", {kF16, {16}, ""}}, {"m.SV", {kF16, {8}, ""}}},
       {},
       {.refused = {"m.Qidxs"}}},
      {"torchao, flattened",
       {{"m.weight:qdata", {kI8, {8, 16}, ""}}, {"m.weight:scale", {kF32, {8, 1}, ""}}},
       {},
       {.refused = {"m.weight:qdata"}}},
      {"torchao, flattened by transformers",
       {{"m._weight_qdata", {kF8, {8, 16}, ""}}, {"m._weight_scale", {kF32, {8, 1}, ""}}},
       {},
       {.refused = {"m._weight_qdata"}}},
      {"MLX",
       {{"m.weight", {DType::U32, {8, 4}, ""}},
        {"m.scales", {kF16, {8, 1}, ""}},
        {"m.biases", {kF16, {8, 1}, ""}}},
       {},
       {.refused = {"m.weight"}}},
      {"MLX of a parameter that is no weight",
       {{"m.kernel", {DType::U32, {8, 4}, ""}}, {"m.kernel_scales", {kF16, {8, 1}, ""}}},
       {},
       {.refused = {"m.kernel"}}},
      {"DeepSeek's own names",
       {{"m.weight", {kF8, {8, 16}, ""}}, {"m.scale", {kF32, {1, 1}, ""}}},
       {},
       {.refused = {"m.weight"}}},
      {"bitsandbytes without its state, in a column",
       {{"m.w", {kU8, {64}, ""}}, {"m.w.absmax", {kF32, {2}, ""}}},
       {},
       {.refused = {"m.w"}}},
      {"FP4 with scales under another name",
       {{"m.weight", {DType::F4, {8, 16}, ""}}, {"m.weight_block_scales", {kF8, {8, 1}, ""}}},
       {},
       {.refused = {"m.weight"}}},
  };
  return rows;
}

TEST(WhatTensorsAre, CodesOfUnknownToolsAreRefusedByTheNamesBesideThem) {
  expect_said(unknown_codes());
}

TEST(WhatTensorsAre, CodesOfUnknownToolsAreRefusedUnderEachMethod) {
  for (const char* name : {"modelopt", "mxfp4", "fp8", "compressed-tensors", "gptq", "awq",
                           "bitsandbytes", "hqq", "nothing_known"}) {
    for (Row row : unknown_codes()) {
      row.config = method(name);
      SCOPED_TRACE(row.what + " under " + name);
      EXPECT_FALSE(said_of(row).refused.empty());
      EXPECT_TRUE(said_of(row).decoded.empty());
    }
  }
}

TEST(WhatTensorsAre, IntegersOfAQuantizedModelAreCodesUnlessTheirNamesSayOtherwise) {
  expect_said({
      {"a weight without anything beside it",
       {{"m.weight", {kI8, {8, 16}, ""}}},
       method("fp8"),
       {.refused = {"m.weight"}}},
      {"wide words under the name of codes",
       {{"m.packed", {kI64, {8, 16}, ""}}},
       method("gptq"),
       {.refused = {"m.packed"}}},
      {"bytes under a name that says nothing",
       {{"experts.up", {kU8, {2, 8, 16}, ""}}},
       method("mxfp4"),
       {.refused = {"experts.up"}}},
      {"a scale under a name with other words",
       {{"m.lattice", {kI32, {8, 16}, ""}}, {"m.my_scale", {kF16, {8}, ""}}},
       method("gptq"),
       {.refused = {"m.lattice"}}},
      {"one weight of many",
       {{"m.weight", {kF8, {8, 16}, ""}},
        {"m.weight_scale", {kF32, {8, 1}, ""}},
        {"n.up", {kI8, {8, 16}, ""}}},
       {},
       {.decoded = {"m.weight"}, .left_out = {"m.weight_scale"}, .refused = {"n.up"}}},
  });
}

TEST(WhatTensorsAre, TablesAndMasksOfQuantizedModelsAreNumbers) {
  const Tensors tables = {
      {"gate.tid2eid", {kI32, {64, 6}, ""}},
      {"gate.weight", {kF8, {8, 16}, ""}},
      {"gate.weight_scale", {kF32, {8, 1}, ""}},
      {"embeddings.position_ids", {kI64, {1, 512}, ""}},
      {"embeddings.token_type_ids", {kI64, {1, 512}, ""}},
      {"h.0.attn.bias", {kU8, {1, 1, 64, 64}, ""}},
      {"h.0.attn.causal_mask", {kU8, {64, 64}, ""}},
      {"h.0.attn.k_scale", {kF32, {}, ""}},
      {"h.0.attn.relative_position_index", {kI64, {64, 64}, ""}},
      {"h.0.attn.logit_scale", {kF32, {4, 1, 1}, ""}},
      {"h.0.attn.attn_bias", {DType::Bool, {64, 64}, ""}},
      {"h.0.conv.num_batches_tracked", {kI64, {}, ""}},
      {"h.0.hops", {kI64, {64, 64}, ""}},
      {"h.0.window", {kU8, {1, 64, 64}, ""}},
      {"d2t", {kI64, {64, 2}, ""}},
  };
  const Said said = {.decoded = {"gate.weight"},
                     .left_out = {"gate.weight_scale", "h.0.attn.k_scale"}};
  expect_said(
      {{"by names alone", tables, {}, said}, {"as config.json says", tables, method("fp8"), said}});
}

TEST(WhatTensorsAre, WhatOnlySoundsLikeAScaleMakesNoCodes) {
  expect_said({
      {"weight norm",
       {{"m.weight_g", {kF32, {8, 1}, ""}}, {"m.weight_v", {kF32, {8, 16}, ""}}},
       {},
       {}},
      {"Swin V2",
       {{"attn.logit_scale", {kF32, {4, 1, 1}, ""}},
        {"attn.relative_position_index", {kI64, {64, 64}, ""}},
        {"attn.scale", {kF32, {1}, ""}}},
       {},
       {}},
      {"integers of a plain model", {{"m.weight", {kI32, {8, 16}, ""}}}, {}, {}},
      {"F8 of a plain model",
       {{"m.weight", {kF8, {8, 16}, ""}}, {"norm.scale", {kF8, {16}, ""}}},
       {},
       {}},
      {"a table in the module of a gain",
       {{"m.hops", {kI64, {8, 8}, ""}}, {"m.layer_scale", {kF32, {8}, ""}}},
       {},
       {}},
  });
}

TEST(WhatTensorsAre, PartsOfWeightsThatAreNotQuantizedAreLeftOut) {
  const Tensors good = {{"a.weight", {kF8, {8, 16}, ""}}, {"a.weight_scale", {kF32, {8, 1}, ""}}};
  const auto with = [&](Tensors tensors) {
    tensors.insert(good.begin(), good.end());
    return tensors;
  };
  expect_said({
      {"a scale beside a plain weight",
       with({{"m.weight", {kBf16, {8, 16}, ""}}, {"m.weight_scale", {kBf16, {8, 1}, ""}}}),
       method("compressed-tensors"),
       {.decoded = {"a.weight"}, .left_out = {"a.weight_scale", "m.weight_scale"}}},
      {"DeepSeek's beside a plain parameter",
       with({{"m.up", {kBf16, {8, 16}, ""}}, {"m.up_scale_inv", {kF32, {1, 1}, ""}}}),
       method("fp8"),
       {.decoded = {"a.weight"}, .left_out = {"a.weight_scale", "m.up_scale_inv"}}},
      {"parts of weights that are not here",
       with({{"m.weight_scale", {kBf16, {8, 1}, ""}},
             {"n.weight_scale", {kF8, {8, 1}, ""}},
             {"n.weight_scale_2", {kF32, {}, ""}},
             {"o.weight_zero_point", {kI8, {8, 1}, ""}},
             {"o.weight_shape", {kI64, {2}, ""}}}),
       {},
       {.decoded = {"a.weight"},
        .left_out = {"a.weight_scale", "m.weight_scale", "n.weight_scale", "n.weight_scale_2",
                     "o.weight_shape", "o.weight_zero_point"}}},
      {"a model that was decoded, under the config.json that it had",
       {{"m.weight", {kBf16, {8, 16}, ""}}, {"m.weight_scale", {kBf16, {8, 1}, ""}}},
       method("fp8"),
       {.left_out = {"m.weight_scale"}}},
      {"scales of the key-value cache alone",
       {{"m.weight", {kBf16, {8, 16}, ""}}, {"m.k_scale", {kF32, {}, ""}}},
       method("modelopt"),
       {}},
      {"the same where nothing says quantized",
       {{"m.weight", {kBf16, {8, 16}, ""}}, {"m.weight_scale", {kBf16, {8, 1}, ""}}},
       {},
       {}},
      {"parts of GPTQ",
       {{"m.g_idx", {kI32, {16}, ""}},
        {"m.qzeros", {kI32, {1, 1}, ""}},
        {"m.scales", {kF16, {1, 8}, ""}},
        {"m.weight", {kF16, {8, 16}, ""}}},
       method("gptq"),
       {.left_out = {"m.g_idx", "m.qzeros", "m.scales"}}},
      {"a parameter that is called as parts of other tools are",
       with({{"m.scales", {kF32, {8, 2}, ""}}}),
       method("fp8"),
       {.decoded = {"a.weight"}, .left_out = {"a.weight_scale"}, .refused = {"m.scales"}}},
      {"scales of codes that are something else",
       with({{"m.up", {kU8, {8, 16}, ""}}, {"m.weight_scale", {kF32, {8, 1}, ""}}}),
       method("fp8"),
       {.decoded = {"a.weight"}, .left_out = {"a.weight_scale"}, .refused = {"m.up"}}},
      {"powers of two without a weight",
       with({{"m.block_scale", {DType::F8E8M0, {8, 1}, ""}}}),
       method("fp8"),
       {.decoded = {"a.weight"}, .left_out = {"a.weight_scale"}, .refused = {"m.block_scale"}}},
  });
}

TEST(WhatTensorsAre, ANoteSaysWhichPartsAreLeftOut) {
  const Quantized result({{"a.weight", {kF8, {8, 16}, ""}},
                          {"a.weight_scale", {kF32, {8, 1}, ""}},
                          {"m.weight", {kBf16, {8, 16}, ""}},
                          {"m.weight_scale", {kF32, {8, 1}, ""}},
                          {"n.weight_scale", {kF32, {8, 1}, ""}},
                          {"o.weight_scale", {kF32, {8, 1}, ""}}},
                         text_of(method("fp8")));
  std::map<std::string, std::string> notes;
  for (const Note& note : result.catalog->notes()) notes[note.subject] = note.text;
  EXPECT_EQ(notes["m.weight_scale"], "left out: its weight is not quantized");
  EXPECT_EQ(notes["n.weight_scale"],
            "left out: the weight that it decodes is not here; so are 1 more tensors");
}

/// JSON as ComfyUI stores it beside a weight.
test_model::Tensor comfy(const std::string& text) {
  return {kU8, {static_cast<std::int64_t>(text.size())}, text};
}

TEST(WhatTensorsAre, FloatsOfComfyUiAreDecodedByEitherSpelling) {
  const Tensors first = {{"m.weight", {kF8, {8, 16}, ""}},
                         {"m.scale_weight", {kF32, {}, ""}},
                         {"m.scale_input", {kF32, {}, ""}},
                         {"scaled_fp8", {kF8, {2}, ""}}};
  const auto second = [](DType type, const std::string& text) {
    return Tensors{{"m.weight", {type, {8, 16}, ""}},
                   {"m.weight_scale", {kF32, {}, ""}},
                   {"m.input_scale", {kF32, {}, ""}},
                   {"m.comfy_quant", comfy(text)}};
  };
  const Said decoded = {.decoded = {"m.weight"},
                        .left_out = {"m.comfy_quant", "m.input_scale", "m.weight_scale"}};
  const Said refused = {.left_out = {"m.input_scale"}, .refused = {"m.weight"}};
  expect_said({
      {"scale_weight",
       first,
       {},
       {.decoded = {"m.weight"}, .left_out = {"m.scale_input", "m.scale_weight", "scaled_fp8"}}},
      {"comfy_quant", second(kF8, R"({"format": "float8_e4m3fn"})"), {}, decoded},
      {"of more bits of exponent",
       second(DType::F8E5M2, R"({"format": "float8_e5m2", "full_precision_matrix_mult": true})"),
       {},
       decoded},
      {"another F8", second(kF8, R"({"format": "float8_e5m2"})"), {}, refused},
      {"blocks in another order", second(kF8, R"({"format": "mxfp8"})"), {}, refused},
      {"integers", second(kI8, R"({"format": "int8_tensorwise"})"), {}, refused},
      {"no format", second(kF8, "{}"), {}, refused},
      {"no JSON", second(kF8, "float8_e4m3fn"), {}, refused},
      {"no text", second(kF8, ""), {}, refused},
      {"FP4 whose scales lie as a GPU reads them",
       {{"m.weight", {kU8, {128, 32}, ""}},
        {"m.weight_scale", {kF8, {128, 4}, ""}},
        {"m.weight_scale_2", {kF32, {}, ""}},
        {"m.comfy_quant", comfy(R"({"format": "nvfp4"})")}},
       {},
       {.refused = {"m.weight"}}},
      {"the mark without a scale",
       {{"m.weight", {kF8, {8, 16}, ""}}, {"scaled_fp8", {kF8, {0}, ""}}},
       {},
       {.left_out = {"scaled_fp8"}, .refused = {"m.weight"}}},
  });
}

TEST(WhatTensorsAre, CodesOfQuantoAreDecodedUnlessTheyArePacked) {
  const auto weight = [](DType type, const Shape& shape, const Shape& scale, DType scale_type) {
    return Tensors{{"m.weight._data", {type, shape, ""}},
                   {"m.weight._scale", {scale_type, scale, ""}},
                   {"m.input_scale", {kBf16, {}, ""}},
                   {"m.output_scale", {kBf16, {}, ""}}};
  };
  const Said decoded = {.decoded = {"m.weight"},
                        .left_out = {"m.input_scale", "m.output_scale", "m.weight._scale"}};
  const Said refused = {.left_out = {"m.input_scale", "m.output_scale"},
                        .refused = {"m.weight._data"}};
  Tensors packed = weight(kU8, {8, 8}, {8, 1}, kBf16);
  packed["m.weight._data._data"] = packed["m.weight._data"];
  packed.erase("m.weight._data");
  Tensors shifted = weight(kI8, {8, 16}, {8, 1}, kBf16);
  shifted["m.weight._shift"] = {kBf16, {8, 1}, ""};
  Tensors twice = weight(kI8, {8, 16}, {8, 1}, kBf16);
  twice["m.weight"] = {kBf16, {8, 16}, ""};
  expect_said({
      {"rows", weight(kI8, {8, 16}, {8, 1}, kBf16), {}, decoded},
      {"rows, as a configuration says", weight(kI8, {8, 16}, {8, 1}, kBf16), method("quanto"),
       decoded},
      {"columns", weight(kI8, {8, 16}, {1, 16}, kF16), {}, decoded},
      {"a tensor", weight(kF8, {8, 16}, {}, kF32), {}, decoded},
      {"kernels of a convolution", weight(kI8, {8, 4, 3, 3}, {8, 1, 1, 1}, kBf16), {}, decoded},
      {"groups", weight(kI8, {8, 16}, {8, 2}, kBf16), {}, refused},
      {"a scale in F64", weight(kI8, {8, 16}, {8, 1}, DType::F64), {}, refused},
      {"no elements", weight(kI8, {0, 16}, {0, 1}, kBf16), {}, refused},
      {"the configuration of another tool", weight(kI8, {8, 16}, {8, 1}, kBf16), method("gptq"),
       refused},
      {"the weight, too", twice, {}, refused},
      {"packed",
       packed,
       {},
       {.left_out = {"m.input_scale", "m.output_scale"}, .refused = {"m.weight._data._data"}}},
      {"shifted", shifted, {}, refused},
  });
}

TEST(WhatTensorsAre, FusedExpertsOfModelOptAreDecoded) {
  const auto fp4 = [](const Shape& shape, const Shape& scale) {
    return Tensors{{"e.up", {kU8, shape, ""}},
                   {"e.up_weight_scale", {kF8, scale, ""}},
                   {"e.up_weight_scale_2", {kF32, {2}, ""}},
                   {"e.up_input_scale", {kF32, {2}, ""}}};
  };
  expect_said({
      {"FP4",
       fp4({2, 8, 16}, {2, 8, 2}),
       method("modelopt"),
       {.decoded = {"e.up"},
        .left_out = {"e.up_input_scale", "e.up_weight_scale", "e.up_weight_scale_2"}}},
      {"FP4 packed along another dimension",
       fp4({2, 4, 32}, {2, 1, 32}),
       method("modelopt"),
       {.left_out = {"e.up_input_scale"}, .refused = {"e.up"}}},
      {"F8",
       {{"e.up", {kF8, {2, 8, 16}, ""}},
        {"e.up_weight_scale", {kF32, {2, 1, 1}, ""}},
        {"e.up_input_scale", {kF32, {2}, ""}}},
       method("modelopt"),
       {.decoded = {"e.up"}, .left_out = {"e.up_input_scale", "e.up_weight_scale"}}},
  });
}

TEST(ScaleNames, FindThePartBySharedWords) {
  ScaleNames names;
  TensorId id = 0;
  for (const char* name : {"a.w_scale", "b.scale", "c.my_scale", "d.w._scale", "e", "scale"}) {
    names.add(id++, name);
  }
  using Kinship = ScaleNames::Kinship;
  const auto found = [&](std::string_view name, TensorId part, Kinship kinship) {
    const auto one = names.find(name);
    return one && one->part == part && one->kinship == kinship;
  };
  EXPECT_TRUE(found("a.w", 0, Kinship::Own));
  EXPECT_TRUE(found("a.w_packed", 0, Kinship::Own));
  EXPECT_TRUE(found("a.x", 0, Kinship::Module));  // `a.w_scale` may be a.weight's
  EXPECT_TRUE(found("b.W_q", 1, Kinship::Own));
  EXPECT_TRUE(found("b.x", 1, Kinship::Module));
  EXPECT_TRUE(found("c.x", 2, Kinship::Loose));
  EXPECT_TRUE(found("d.w._data", 3, Kinship::Own));
  EXPECT_TRUE(found("W_q", 5, Kinship::Own));
  EXPECT_FALSE(names.find("e.w"));
  EXPECT_FALSE(names.find("d.x"));
}

}  // namespace
}  // namespace ckfs
