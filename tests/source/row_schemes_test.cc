// Weights whose rows lie one behind another (compressed-tensors, DeepSeek, ModelOpt, gpt-oss) as a
// checkpoint's headers and configuration describe them: what good ones become, and a table of
// broken ones with the reason that each is refused for.
#include "base/load_le.h"
#include "source/hf/scheme.h"
#include "source/test_model.h"

namespace ckfs {
namespace {

using test_model::Corpus;
using test_model::Model;
using test_model::quantized;
using test_model::Shape;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

/// The content of a weight_shape.
std::string numbers(std::int64_t rows, std::int64_t columns) {
  std::string text(16, '\0');
  const auto bytes = std::as_writable_bytes(std::span(text));
  store_le(bytes, rows);
  store_le(bytes.subspan(8), columns);
  return text;
}

/// compressed-tensors with one group of these arguments, in JSON.
test_model::Config compressed(const std::string& format, const std::string& weights,
                              const std::string& targets = R"(["Linear"])") {
  return {{"quant_method", "\"compressed-tensors\""},
          {"format", "\"" + format + "\""},
          {"version", "\"0.20.0\""},
          {"config_groups",
           fmt::format(R"({{"group_0": {{"targets": {}, "weights": {}}}}})", targets, weights)}};
}

std::string integers(std::int64_t bits, const std::string& more) {
  return fmt::format(R"({{"num_bits": {}, "type": "int", {}}})", bits, more);
}

const std::string kSymmetric = R"("symmetric": true, "strategy": "group", "group_size": 32)";
const std::string kAsymmetric = R"("symmetric": false, "strategy": "group", "group_size": 32)";
const std::string kChannel = R"("symmetric": true, "strategy": "channel")";

/// [16, 96] in groups of 32.
Model packed(std::int64_t bits = 4) {
  return {{{"m.weight_packed", {DType::I32, {16, 3 * bits}, ""}},
           {"m.weight_scale", {DType::BF16, {16, 3}, ""}},
           {"m.weight_shape", {DType::I64, {2}, numbers(16, 96)}}},
          compressed("pack-quantized", integers(bits, kSymmetric))};
}

Model with_zeros() {
  Model model = packed();
  model.tensors["m.weight_zero_point"] = {DType::I32, {2, 3}, ""};
  model.config = compressed("pack-quantized", integers(4, kAsymmetric));
  return model;
}

Model with_order() {
  Model model = packed();
  model.tensors["m.weight_g_idx"] = {DType::I32, {96}, ""};
  return model;
}

Model by_row(std::int64_t columns, std::int64_t bits = 4) {
  Model model = packed(bits);
  model.tensors["m.weight_packed"].shape = {16, (columns * bits + 31) / 32};
  model.tensors["m.weight_scale"].shape = {16, 1};
  model.tensors["m.weight_shape"].content = numbers(16, columns);
  model.config = compressed("pack-quantized", integers(bits, kChannel));
  return model;
}

Model nvfp4() {
  return {{{"m.weight_packed", {DType::U8, {16, 48}, ""}},
           {"m.weight_scale", {DType::F8E4M3, {16, 6}, ""}},
           {"m.weight_global_scale", {DType::F32, {1}, ""}}},
          {{"quant_method", "\"compressed-tensors\""}, {"format", "\"nvfp4-pack-quantized\""}}};
}

Model mxfp4() {
  return {{{"m.weight_packed", {DType::U8, {16, 48}, ""}},
           {"m.weight_scale", {DType::U8, {16, 3}, ""}}},
          {{"quant_method", "\"compressed-tensors\""}, {"format", "\"mxfp4-pack-quantized\""}}};
}

Model gpt_oss() {
  return {{{"e.down_proj_blocks", {DType::U8, {2, 16, 3, 16}, ""}},
           {"e.down_proj_scales", {DType::U8, {2, 16, 3}, ""}},
           {"e.down_proj_bias", {DType::BF16, {2, 16}, ""}}},
          {{"quant_method", "\"mxfp4\""}}};
}

Model modelopt() {
  return {{{"m.weight", {DType::U8, {16, 48}, ""}},
           {"m.weight_scale", {DType::F8E4M3, {16, 6}, ""}},
           {"m.weight_scale_2", {DType::F32, {}, ""}},
           {"m.input_scale", {DType::F32, {}, ""}}},
          {{"quant_method", "\"modelopt\""}, {"quant_algo", "\"NVFP4\""}}};
}

Model v4() {
  return {{{"m.weight", {DType::I8, {16, 48}, ""}}, {"m.scale", {DType::F8E8M0, {16, 3}, ""}}},
          {{"quant_method", "\"fp8\""}}};
}

Model blocks() {
  return {{{"m.weight", {DType::F8E4M3, {160, 96}, ""}},
           {"m.weight_scale_inv", {DType::F32, {2, 1}, ""}}},
          {{"quant_method", "\"fp8\""}, {"weight_block_size", "[128, 128]"}}};
}

Model int8_model() {
  return {{{"m.weight", {DType::I8, {16, 96}, ""}},
           {"m.weight_scale", {DType::BF16, {16, 1}, ""}},
           {"m.weight_zero_point", {DType::I8, {16, 1}, ""}}},
          compressed("int-quantized", integers(8, R"("symmetric": false, "strategy": "channel")"))};
}

/// ModelOpt's FP8_PB_WO, in blocks with a dimension of one behind each of the scale's.
Model modelopt_blocks() {
  return {{{"m.weight", {DType::F8E4M3, {256, 384}, ""}},
           {"m.weight_scale", {DType::F32, {2, 1, 3, 1}, ""}}},
          {{"quant_method", "\"modelopt\""}, {"quant_algo", "\"FP8_PB_WO\""}}};
}

TEST(RowSchemes, NameWhatModelOptSaysOfModulesThatAreNotHere) {
  Model model = modelopt_blocks();
  model.config["config_groups"] =
      R"({"group_0": {"targets": ["m", "l.gate_up_proj"], "weights": {"num_bits": 8}}})";
  EXPECT_THAT(quantized(model).obstacles(), IsEmpty());
  model.config["quant_method"] = "\"compressed-tensors\"";
  EXPECT_THAT(quantized(model).obstacles(), testing::Contains(testing::Key("config.json")));
}

TEST(RowSchemes, TakeWhatTheirToolsWrite) {
  for (const Model& model :
       {packed(), packed(1), packed(3), packed(8), with_zeros(), with_order(), by_row(96),
        by_row(95), by_row(41, 3), by_row(2056, 3), nvfp4(), mxfp4(), modelopt(), v4(),
        int8_model(), blocks(), modelopt_blocks()}) {
    const auto result = quantized(model);
    EXPECT_THAT(result.obstacles(), IsEmpty());
    EXPECT_FALSE(result.encoding("m.weight").is_plain());
  }
  EXPECT_THAT(quantized(gpt_oss()).obstacles(), IsEmpty());
}

TEST(RowSchemes, TakeEachDimensionOfAScaleForThatOfItsWeight) {
  using Block = std::array<std::int64_t, 2>;
  const auto block_of = [](const Shape& shape, const Shape& scale, const std::string& method = "") {
    Model model{{{"m.w", {DType::F8E4M3, shape, ""}}, {"m.w_scale", {DType::F32, scale, ""}}}, {}};
    if (!method.empty()) model.config["quant_method"] = "\"" + method + "\"";
    const auto result = quantized(model);
    const BlockScale* kind = find_block_scale(result.encoding("m.w"));
    return kind == nullptr ? Block{0, 0} : Block{kind->block_rows, kind->block_columns};
  };
  constexpr Block kRefused = {0, 0};
  for (const Shape& scale : {Shape{}, {1}, {1, 1}, {1, 1, 1}}) {
    EXPECT_EQ(block_of({8, 16}, scale), (Block{8, 16}));
    EXPECT_EQ(block_of({1, 8, 16}, scale), (Block{8, 16}));
  }
  for (const Shape& scale : {Shape{8}, {8, 1}}) EXPECT_EQ(block_of({8, 8}, scale), (Block{1, 8}));
  EXPECT_EQ(block_of({8, 8}, {1, 8}), (Block{8, 1}));
  EXPECT_EQ(block_of({8, 8}, {8, 4}), (Block{1, 2}));
  EXPECT_EQ(block_of({8, 8}, {4, 8}), kRefused);
  EXPECT_EQ(block_of({8, 8}, {8, 0}), kRefused);
  EXPECT_EQ(block_of({8, 8}, {8, 1, 1}), kRefused);
  for (const Shape& scale : {Shape{4}, {4, 1}, {4, 1, 1}}) {
    EXPECT_EQ(block_of({4, 4, 8}, scale), (Block{4, 8}));
  }
  EXPECT_EQ(block_of({4, 4, 8}, {1, 4, 1}), kRefused);
  EXPECT_EQ(block_of({4, 4, 8}, {4, 4}), (Block{1, 8}));
  EXPECT_EQ(block_of({4, 8, 8}, {4, 8, 1}), (Block{1, 8}));
  EXPECT_EQ(block_of({4, 8, 8}, {4, 8, 4}), (Block{1, 2}));
  EXPECT_EQ(block_of({4, 8, 8}, {8, 1}), kRefused);
  EXPECT_EQ(block_of({4, 8, 8}, {1, 1, 1}), kRefused);
  EXPECT_EQ(block_of({1, 8, 8}, {8, 1}), kRefused);
  // Experts of Llama 4, [experts, inputs, outputs], have a scale for each output.
  for (const Shape& shape : {Shape{4, 8, 8}, {4, 6, 8}}) {
    EXPECT_EQ(block_of(shape, {4, 1, 8}, "fbgemm_fp8"), (Block{shape[1], 1}));
    EXPECT_EQ(block_of(shape, {4, 8, 1}, "fbgemm_fp8"), (Block{shape[1], 1}));
  }
}

TEST(PackQuantized, HasTheOnlyWidthThatFitsWhereNoneIsSaid) {
  for (const std::int64_t bits : {1, 2, 3, 4, 5, 6}) {
    Model model = packed(bits);
    model.config.clear();
    const auto result = quantized(model);
    EXPECT_THAT(result.obstacles(), IsEmpty());
    EXPECT_EQ(find_block_scale(result.encoding("m.weight"))->packing.bits, bits);
  }
  for (const std::int64_t bits : {7, 8}) {
    Model model = packed(bits);
    model.config = compressed("pack-quantized", R"({"type": "int", "strategy": "channel"})");
    const auto result = quantized(model);
    EXPECT_EQ(find_block_scale(result.encoding("m.weight"))->packing.bits, bits);
  }
}

TEST(PackQuantized, ReadsNoShapeOfThousandsOfWeights) {
  // All of them say the wrong thing.
  Model model = packed();
  model.tensors["m.weight_shape"].content = numbers(16, 128);
  const auto with = [&](std::size_t weights) {
    Model many = model;
    for (std::size_t i = 1; i < weights; ++i) {
      for (const auto& [name, tensor] : model.tensors) {
        many.tensors[fmt::format("{}{}", i, name)] = tensor;
      }
    }
    return quantized(many).obstacles().size();
  };
  EXPECT_GT(with(kMaxChecked), 0U);
  EXPECT_EQ(with(kMaxChecked + 1), 0U);
}

TEST(ConfigGroups, PatternsCountForKindsOfModulesThatAreQuantized) {
  Model model;
  for (const char* layer : {"0", "1", "22"}) {
    for (const auto& [name, tensor] : packed().tensors) {
      model.tensors[fmt::format("l.{}.{}", layer, name)] = tensor;
    }
    model.tensors[fmt::format("l.{}.norm.weight", layer)] = {DType::BF16, {96}, ""};
    model.tensors[fmt::format("l.{}.gate.weight", layer)] = {DType::BF16, {8, 96}, ""};
  }
  model.tensors["embed.weight"] = {DType::BF16, {8, 96}, ""};
  model.config = compressed("pack-quantized", integers(4, kSymmetric), R"(["re:.*"])");
  EXPECT_THAT(quantized(model).obstacles(), IsEmpty());
  // One layer that is stored otherwise than all others.
  model.tensors["l.3.m.weight"] = {DType::BF16, {16, 96}, ""};
  EXPECT_THAT(quantized(model).obstacles(),
              ElementsAre(Pair("l.3.m.weight",
                               "is BF16, but a target of config.json's "
                               "config_groups calls it quantized")));
  // A recipe's pattern for modules that the model lacks.
  model.tensors.erase("l.3.m.weight");
  model.config =
      compressed("pack-quantized", integers(4, kSymmetric), R"(["re:l.*", "re:absent"])");
  EXPECT_THAT(quantized(model).obstacles(), IsEmpty());
  // What a name calls quantized is, whatever it is.
  model.tensors.erase("l.3.m.weight");
  model.config = compressed("pack-quantized", integers(4, kSymmetric), R"(["re:.*", "embed"])");
  EXPECT_THAT(quantized(model).obstacles(),
              ElementsAre(Pair("config.json", HasSubstr("target \"embed\" of its config_groups "
                                                        "matches no quantized weight")),
                          Pair("embed.weight", HasSubstr("calls it quantized"))));
}

// The table of broken ones.

constexpr std::int64_t kHugeExtent = std::int64_t{1} << 58;

void add_broken_packed(Corpus& corpus) {
  const std::string codes = "m.weight_packed";
  for (const std::int64_t bits : {1, 2, 3, 4, 5, 6, 7, 8}) {
    const Model good = packed(bits);
    corpus.drop(good, "m.weight_scale", codes, "without its weight_scale");
    corpus.shape(good, codes, {16, 3 * bits + 9}, codes,
                 fmt::format("but 96 codes of {} bits need", bits));
    corpus.shape(good, codes, {15, 3 * bits}, codes,
                 "its weight_shape says [16, 96], but it has 15 rows");
    corpus.shape(good, "m.weight_scale", {15, 3}, codes,
                 "fits no groups of a weight of shape [16, 96]");
    Model model = good;
    model.tensors["m.weight_shape"].content = numbers(16, 97);
    corpus.add("weight_shape [16, 97]", model, codes,
               "its weight_shape says [16, 97], but a scale of shape [16, 3] and groups of 32 are "
               "[16, 96]");
  }
  const Model good = packed();
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{17, 96},
                                      {16, 0},
                                      {16, -96},
                                      {0, 96},
                                      {16, kHugeExtent},
                                      {96, 16}}) {
    Model model = good;
    model.tensors["m.weight_shape"].content = numbers(rows, columns);
    corpus.add(fmt::format("weight_shape [{}, {}]", rows, columns), model, codes,
               fmt::format("its weight_shape says [{}, {}], but it has 16 rows", rows, columns));
    Model row = by_row(96);
    row.tensors["m.weight_shape"].content = numbers(rows, columns);
    corpus.add(fmt::format("weight_shape [{}, {}] by row", rows, columns), row, codes,
               fmt::format("its weight_shape says [{}, {}], but it has 16 rows", rows, columns));
  }
  corpus.dtypes(good, "m.weight_shape", {DType::I16, DType::F32, DType::U8}, codes,
                "(known: two I64 or I32)");
  corpus.shape(good, "m.weight_shape", {3}, codes, "its weight_shape is I64 [3]");
  corpus.shape(good, "m.weight_shape", {1, 2}, codes, "its weight_shape is I64 [1, 2]");
  corpus.shape(good, "m.weight_shape", {kHugeExtent / 8}, codes, "(known: two I64 or I32)");
  corpus.drop(by_row(96), "m.weight_shape", codes, "without its weight_shape");
  corpus.dtypes(good, "m.weight_scale", {DType::F64, DType::I32, DType::F8E4M3, DType::U8}, codes,
                "(known: F32, BF16, F16)");
  corpus.shape(good, codes, {16}, codes, "shape [16] is not of 2 dimensions");
  corpus.shape(good, codes, {1, 16, 12}, codes, "is not of 2 dimensions");
  corpus.shape(good, codes, {0, 12}, codes, "shape [0, 12] is not of 2 dimensions");
  corpus.shape(good, codes, {1, kHugeExtent / 4}, codes, "is not of 2 dimensions");
  for (const auto& [weights, reason] : std::vector<std::pair<std::string, std::string>>{
           {integers(9, kSymmetric), "9 bits (limit 1 to 8)"},
           {integers(1024, kSymmetric), "1024 bits (limit 1 to 8)"},
           {integers(3, kSymmetric), "but 96 codes of 3 bits need 9 or 10"},
           {integers(8, kSymmetric), "but 96 codes of 8 bits need 24"},
           {integers(4, kAsymmetric), "without its weight_zero_point"},
           {integers(4, R"("strategy": "group", "group_size": 16)"), "groups of 16 are [16, 48]"},
           {R"({"num_bits": 4, "type": "float", "group_size": 32})",
            "config.json says type float"}}) {
    Model model = good;
    model.config = compressed("pack-quantized", weights);
    corpus.add(weights, model, codes, reason);
  }
  // 8 bits, or 7 as they were packed before 0.18.
  Model unsaid = packed(8);
  unsaid.config.clear();
  corpus.add("no num_bits", unsaid, codes, "24 words in a row may be 96 codes of 7 or 8 bits");
  corpus.shape(unsaid, codes, {16, 25}, codes, "25 words in a row hold 96 codes of no width");
  Model twice = by_row(80, 3);
  twice.config.erase("version");
  corpus.add("no version", twice, codes, "hold 80 codes of 3 bits in two ways");
  for (const char* version : {"\"x\"", "\"\"", "\"1\"", "\".1\""}) {
    Model model = twice;
    model.config["version"] = version;
    corpus.add(fmt::format("version {}", version), model, codes, "which decides");
  }
  for (const std::int64_t bits : {3, 5, 6, 7}) {
    corpus.add("long rows", by_row(2049, bits), codes,
               fmt::format("rows of 2049 codes of {} bits end within a byte (limit 2048)", bits));
  }
  for (const char* beside : {"m.scale_packed", "m.meta"}) {
    Model model = good;
    model.tensors[beside] = {DType::I32, {4}, ""};
    corpus.add(beside, model, codes, "packed as marlin-24");
  }
  Model twin = good;
  twin.tensors["m.weight"] = {DType::BF16, {16, 96}, ""};
  corpus.add("the dense weight, too", twin, codes, "decodes to m.weight, which is stored, too");
  Model as_awq = good;
  as_awq.config.erase("quant_method");
  as_awq.config.erase("version");
  as_awq.config.insert(
      {{"bits", "4"}, {"group_size", "32"}, {"version", "\"gemm\""}, {"zero_point", "true"}});
  as_awq.tensors["m.qweight"] = {DType::I32, {64, 12}, ""};
  as_awq.tensors["m.qzeros"] = {DType::I32, {2, 12}, ""};
  as_awq.tensors["m.scales"] = {DType::F16, {2, 96}, ""};
  corpus.add("the same weight as AWQ has it", as_awq, codes,
             "decodes to m.weight, as another tensor does");

  const Model zeros = with_zeros();
  corpus.shape(zeros, "m.weight_zero_point", {16, 3}, codes,
               "but packed along the rows it is I32 [2, 3]");
  corpus.shape(zeros, "m.weight_zero_point", {2, 4}, codes,
               "but packed along the rows it is I32 [2, 3]");
  corpus.dtypes(zeros, "m.weight_zero_point", {DType::I8, DType::U8, DType::F32, DType::I64}, codes,
                "but packed along the rows it is I32 [2, 3]");
  Model both = zeros;
  both.config = compressed("pack-quantized", integers(4, kSymmetric));
  corpus.add("symmetric with zeros", both, codes, "but config.json says symmetric: true");
  const Model order = with_order();
  corpus.shape(order, "m.weight_g_idx", {95}, codes, "its weight_g_idx is I32 [95], not I32 [96]");
  corpus.shape(order, "m.weight_g_idx", {96, 1}, codes, "not I32 [96]");
  corpus.dtypes(order, "m.weight_g_idx", {DType::I64, DType::F32, DType::I16}, codes,
                "not I32 [96]");

  corpus.config(good, "format", {"\"int-quantized\"", "\"nvfp4-pack-quantized\""}, codes,
                "looks like pack-quantized, but config.json says format");
  corpus.config(good, "format", {"\"marlin-24\"", "\"sparse-bitmask\""}, codes,
                "which ckfs cannot decode");
  corpus.config(good, "quant_method", {"\"fp8\"", "\"gptq\"", "\"awq\""}, codes,
                "but config.json says quant_method");
  corpus.config(good, "transform_config", {"{\"config_groups\": {\"u\": {}}}"}, "config.json",
                "transform_config is not empty");
}

void add_broken_float4(Corpus& corpus) {
  const std::string packed_codes = "m.weight_packed";
  const Model nv = nvfp4();
  corpus.drop(nv, "m.weight_scale", packed_codes, "without its weight_scale");
  corpus.drop(nv, "m.weight_global_scale", packed_codes, "looks like mxfp4-pack-quantized, but");
  corpus.dtypes(nv, "m.weight_scale", {DType::U8, DType::BF16, DType::F32, DType::F8E5M2},
                packed_codes, "(known: F8_E4M3)");
  corpus.dtypes(nv, "m.weight_global_scale", {DType::BF16, DType::F64, DType::I32}, packed_codes,
                "(known: one F32)");
  corpus.shape(nv, "m.weight_global_scale", {2}, packed_codes, "(known: one F32)");
  corpus.shape(nv, "m.weight_global_scale", {0}, packed_codes, "(known: one F32)");
  corpus.config(nv, "format", {"\"mxfp4-pack-quantized\"", "\"pack-quantized\""}, packed_codes,
                "but config.json says format");
  const Model mx = mxfp4();
  corpus.drop(mx, "m.weight_scale", packed_codes, "without its weight_scale");
  corpus.dtypes(mx, "m.weight_scale", {DType::F8E4M3, DType::BF16, DType::I8}, packed_codes,
                "(known: U8, F8_E8M0)");
  for (const auto& [good, group] : {std::pair(nv, 6), std::pair(mx, 3)}) {
    corpus.shape(good, "m.weight_scale", {16, group + 1}, packed_codes,
                 fmt::format("need [16, {}]", group));
    corpus.shape(good, "m.weight_scale", {15, group}, packed_codes,
                 fmt::format("need [16, {}]", group));
    corpus.shape(good, "m.weight_scale", {16}, packed_codes, fmt::format("need [16, {}]", group));
    corpus.shape(good, packed_codes, {16, 47}, packed_codes, "its scale has shape");
    corpus.shape(good, packed_codes, {768}, packed_codes, "is not of 2 or 3 dimensions");
    corpus.shape(good, packed_codes, {0, 48}, packed_codes, "has no elements");
    corpus.shape(good, packed_codes, {0, kHugeExtent * 16}, packed_codes, "has no elements");
  }

  const std::string blocks = "e.down_proj_blocks";
  const Model oss = gpt_oss();
  corpus.drop(oss, "e.down_proj_scales", blocks, "U8 (config.json says quant_method \"mxfp4\")");
  corpus.dtypes(oss, "e.down_proj_scales", {DType::F8E8M0, DType::BF16, DType::I8}, blocks,
                "(known: U8)");
  corpus.shape(oss, "e.down_proj_scales", {2, 16, 4}, blocks, "need [2, 16, 3]");
  corpus.shape(oss, "e.down_proj_scales", {2, 48}, blocks, "need [2, 16, 3]");
  corpus.shape(oss, blocks, {2, 16, 3, 8}, blocks, "is not of 4 dimensions, the last of 16");
  corpus.shape(oss, blocks, {2, 16, 48}, blocks, "is not of 4 dimensions, the last of 16");
  corpus.shape(oss, blocks, {2, 0, 3, 16}, blocks, "has no elements");
  corpus.shape(oss, blocks, {0, 1, kHugeExtent, 16}, blocks,
               "is not of 4 dimensions, the last of 16");
  corpus.config(oss, "quant_method", {"\"fp8\"", "\"modelopt\""}, blocks,
                "but config.json says quant_method");
  Model twin = oss;
  twin.tensors["e.down_proj"] = {DType::BF16, {2, 96, 16}, ""};
  corpus.add("the dense weight, too", twin, blocks, "decodes to e.down_proj, which is stored, too");

  const std::string weight = "m.weight";
  const Model nvidia = modelopt();
  corpus.drop(nvidia, "m.weight_scale", weight, "without m.weight_scale");
  corpus.dtypes(nvidia, "m.weight_scale", {DType::U8, DType::BF16, DType::F32}, weight,
                "(known: F8_E4M3)");
  corpus.dtypes(nvidia, "m.weight_scale_2", {DType::BF16, DType::F64}, weight, "(known: one F32)");
  corpus.shape(nvidia, "m.weight_scale_2", {2}, weight, "(known: one F32)");
  corpus.shape(nvidia, "m.weight_scale", {16, 7}, weight, "need [16, 6]");
  corpus.shape(nvidia, weight, {16, 47}, weight, "its scale has shape");
  corpus.config(nvidia, "quant_algo", {"\"NVFP4_AWQ\"", "\"W4A16_AWQ\"", "\"NVFP4_SVD\""}, weight,
                "which scales activations, too");
  for (const char* beside : {"m.pre_quant_scale", "m.svdquant_lora_a"}) {
    Model model = nvidia;
    model.tensors[beside] = {DType::BF16, {96}, ""};
    corpus.add(beside, model, weight, "is part of the weight, too");
  }

  const Model deepseek = v4();
  corpus.shape(deepseek, "m.scale", {16, 2}, weight, "need [16, 3]");
  corpus.shape(deepseek, "m.scale", {16}, weight, "need [16, 3]");
  corpus.shape(deepseek, weight, {16, 49}, weight, "its scale has shape");
  corpus.shape(deepseek, weight, {0, 48}, weight, "has no elements");
  corpus.config(deepseek, "quant_method", {"\"gptq\"", "\"compressed-tensors\""}, weight,
                "but config.json says quant_method");
}

void add_broken_bytes(Corpus& corpus) {
  const std::string weight = "m.weight";
  const Model good = blocks();
  corpus.drop(good, "m.weight_scale_inv", weight, "F8_E4M3 without a scale");
  corpus.dtypes(good, "m.weight_scale_inv", {DType::F64, DType::I32, DType::F8E4M3}, weight,
                "(known: F32, BF16, F8_E8M0, U8)");
  corpus.shape(
      good, "m.weight_scale_inv", {1, 1}, weight,
      "its scale has shape [1, 1], but blocks of 128 x 128 over shape [160, 96] need [2, 1]");
  corpus.shape(good, "m.weight_scale_inv", {2, 2}, weight, "need [2, 1]");
  corpus.shape(good, "m.weight_scale_inv", {2}, weight, "need [2, 1]");
  corpus.shape(good, weight, {160}, weight, "is not of 2 or 3 dimensions");
  corpus.shape(good, weight, {1, 1, 160, 96}, weight, "is not of 2 or 3 dimensions");
  corpus.shape(good, weight, {0, 96}, weight, "shape [0, 96] has no elements");
  corpus.config(good, "weight_block_size", {"[64, 128]", "[128, 32]"}, weight, "need [");
  corpus.config(good, "quant_method", {"\"gptq\"", "\"bitsandbytes\""}, weight,
                "but config.json says quant_method");
  corpus.config(good, "quant_method", {"\"quark\"", "\"hqq\"", "\"torchao\""}, weight,
                "which ckfs cannot decode");
  Model folded = good;
  folded.tensors["m.pre_quant_scale"] = {DType::F32, {96}, ""};
  corpus.add("pre_quant_scale", folded, weight, "its pre_quant_scale is part of the weight, too");
  // As codes of 4 bits the scale would be read as having twice the columns.
  Model nested = good;
  nested.tensors = {{weight, {DType::F8E4M3, {128, 4096}, ""}},
                    {"m.qscale_weight", {DType::U8, {1, 16}, ""}},
                    {"m.qscale_weight_scale", {DType::U8, {1, 1}, ""}}};
  nested.config["quant_method"] = "\"modelopt\"";
  corpus.add("a scale of half the columns", nested, weight, "its scale has shape [1, 16]");
  nested.tensors["m.qscale_weight"].shape = {1, 32};
  nested.tensors["m.qscale_weight_scale"].shape = {1, 2};
  corpus.add("a scale that is codes", nested, weight, "its qscale_weight looks quantized, too");
  Model zeros = good;
  zeros.tensors["m.weight_zero_point"] = {DType::I8, {2, 1}, ""};
  corpus.add("zeros of fp8", zeros, weight, "its zero points are I8");

  const Model bytes = int8_model();
  corpus.drop(bytes, "m.weight_scale", weight, "I8 beside \"weight_zero_point\"");
  corpus.shape(bytes, "m.weight_zero_point", {16}, weight, "(known: I8 in the shape of the scale)");
  corpus.dtypes(bytes, "m.weight_zero_point", {DType::I32, DType::BF16}, weight,
                "(known: I8 in the shape of the scale)");
  corpus.dtypes(bytes, "m.weight_scale", {DType::F64, DType::I8}, weight, "its scale is");
  corpus.shape(bytes, "m.weight_scale", {15, 1}, weight, "its scale has shape [15, 1]");
  Model sparse = bytes;
  sparse.tensors["n.bitmask"] = {DType::U8, {16, 2}, ""};
  corpus.add("a bitmask", sparse, "n.bitmask", "a sparse format of compressed-tensors");
}

TEST(BrokenRows, AreObstaclesThatNameTheTensorAndTheFact) {
  Corpus corpus;
  add_broken_packed(corpus);
  add_broken_float4(corpus);
  add_broken_bytes(corpus);
  EXPECT_GE(corpus.size(), 150U);
  corpus.expect_refused();
}

}  // namespace
}  // namespace ckfs
