// Weights of GPTQ, AWQ and bitsandbytes as a checkpoint's headers and configuration describe them:
// what good ones become, and a table of broken ones with the reason that each is refused for.
#include "source/test_model.h"

namespace ckfs {
namespace {

using test_model::Config;
using test_model::Corpus;
using test_model::Model;
using test_model::Quantized;
using test_model::quantized;
using test_model::Shape;
using test_model::Tensors;
using test_model::text_of;
using testing::ElementsAre;
using testing::IsEmpty;

Model gptq(std::int64_t bits = 4) {
  return {{{"m.qweight", {DType::I32, {64 * bits / 32, 96}, ""}},
           {"m.qzeros", {DType::I32, {2, 96 * bits / 32}, ""}},
           {"m.scales", {DType::F16, {2, 96}, ""}},
           {"m.g_idx", {DType::I32, {64}, ""}},
           {"m.bias", {DType::F16, {96}, ""}}},
          {{"quant_method", "\"gptq\""},
           {"bits", std::to_string(bits)},
           {"group_size", "32"},
           {"desc_act", "false"},
           {"checkpoint_format", "\"gptq\""}}};
}

Model awq() {
  return {{{"m.qweight", {DType::I32, {64, 12}, ""}},
           {"m.qzeros", {DType::I32, {2, 12}, ""}},
           {"m.scales", {DType::F16, {2, 96}, ""}}},
          {{"quant_method", "\"awq\""},
           {"bits", "4"},
           {"group_size", "32"},
           {"version", "\"gemm\""},
           {"zero_point", "true"}}};
}

const std::string kState = "m.weight.quant_state.bitsandbytes__nf4";

Config state(bool nested = true) {
  Config state = {{"quant_type", "\"nf4\""},
                  {"dtype", "\"bfloat16\""},
                  {"blocksize", "64"},
                  {"shape", "[33, 10]"}};
  if (nested) {
    state["nested_blocksize"] = "4";
    state["nested_dtype"] = "\"float32\"";
    state["nested_offset"] = "0.03125";
  }
  return state;
}

Model nf4(const Config& state) {
  const std::string text = text_of(state);
  const bool nested = state.contains("nested_blocksize");
  Tensors tensors = {
      {"m.weight", {DType::U8, {165, 1}, ""}},
      {"m.weight.absmax", {nested ? DType::U8 : DType::F32, {6}, ""}},
      {"m.weight.quant_map", {DType::F32, {16}, ""}},
      {kState, {DType::U8, {static_cast<std::int64_t>(text.size())}, text}},
  };
  if (nested) {
    tensors["m.weight.nested_absmax"] = {DType::F32, {2}, ""};
    tensors["m.weight.nested_quant_map"] = {DType::F32, {256}, ""};
  }
  return {tensors, {{"quant_method", "\"bitsandbytes\""}}};
}

Model int8() {
  return {{{"m.weight", {DType::I8, {33, 10}, ""}},
           {"m.SCB", {DType::F32, {33}, ""}},
           {"m.weight_format", {DType::U8, {}, std::string(1, '\0')}}},
          {{"quant_method", "\"bitsandbytes\""}}};
}

TEST(Gptq, BecomesATransposedWeight) {
  for (const std::int64_t bits : {2, 3, 4, 8}) {
    for (const bool ordered : {false, true}) {
      Model model = gptq(bits);
      model.config["desc_act"] = ordered ? "true" : "false";
      const Quantized result = quantized(model);
      EXPECT_THAT(result.obstacles(), IsEmpty());
      const StoredTensor& weight = result.catalog->tensor(result.catalog->find("m.weight").value());
      EXPECT_THAT(weight.shape, ElementsAre(96, 64));
      ASSERT_EQ(weight.boxes.size(), 1U);
      EXPECT_THAT(weight.boxes[0].stride, ElementsAre(1, 96));
      EXPECT_EQ(result.encoding("m.weight").companions(), 3U);
      EXPECT_EQ(
          result.catalog->quantization(),
          fmt::format("gptq or awq (GPTQ int{}, F16 scale and zero point for each 32 inputs{})",
                      bits, ordered ? " in any order (g_idx)" : ""));
      EXPECT_TRUE(result.catalog->quantization_details().casts_all);
      EXPECT_EQ(std::ranges::count(result.companions, true), 3);
    }
  }
}

TEST(Gptq, NeedsNeitherAConfigurationNorAGIdx) {
  Model model = gptq();
  model.tensors.erase("m.g_idx");
  model.config.clear();
  const Quantized result = quantized(model);
  EXPECT_THAT(result.obstacles(), IsEmpty());
  EXPECT_EQ(result.encoding("m.weight").companions(), 2U);
}

TEST(Gptq, MayHaveModulesThatDifferWhereTheConfigurationSaysSo) {
  Model model = gptq(8);
  model.config["bits"] = "4";
  model.config["group_size"] = "16";
  model.config["dynamic"] = R"({"m": {"bits": 8}})";
  EXPECT_THAT(quantized(model).obstacles(), IsEmpty());
}

TEST(Gptq, TakesOneGroupForMinusOne) {
  Model model = gptq();
  model.config["group_size"] = "-1";
  model.tensors["m.scales"].shape = {1, 96};
  model.tensors["m.qzeros"].shape = {1, 12};
  EXPECT_THAT(quantized(model).obstacles(), IsEmpty());
}

TEST(Awq, BecomesATransposedWeight) {
  const Quantized result = quantized(awq());
  EXPECT_THAT(result.obstacles(), IsEmpty());
  EXPECT_THAT(result.catalog->tensor(result.catalog->find("m.weight").value()).shape,
              ElementsAre(96, 64));
  EXPECT_EQ(result.catalog->quantization(),
            "gptq or awq (AWQ int4, F16 scale and zero point for each 32 inputs)");
}

TEST(Bitsandbytes, HasTheShapeThatItsStateGives) {
  for (const bool nested : {false, true}) {
    const Quantized result = quantized(nf4(state(nested)));
    EXPECT_THAT(result.obstacles(), IsEmpty());
    EXPECT_THAT(result.catalog->tensor(result.catalog->find("m.weight").value()).shape,
                ElementsAre(33, 10));
    EXPECT_EQ(result.encoding("m.weight").dtype(), DType::BF16);
    EXPECT_EQ(result.encoding("m.weight").companions(), nested ? 4U : 2U);
    EXPECT_FALSE(result.catalog->quantization_details().casts_all);
  }
}

TEST(Bitsandbytes, MayCallItsCodesAnyDtype) {
  Config odd = state();
  odd["shape"] = "[33, 20]";  // 330 bytes
  Model model = nf4(odd);
  model.tensors["m.weight"] = {DType::BF16, {165, 1}, ""};
  model.tensors["m.weight.absmax"].shape = {11};
  model.tensors["m.weight.nested_absmax"].shape = {3};
  EXPECT_THAT(quantized(model).obstacles(), IsEmpty());
}

TEST(Bitsandbytes, DecodesRowsOfSignedBytes) {
  Model model = int8();
  EXPECT_THAT(quantized(model).obstacles(), IsEmpty());
  model.tensors.erase("m.weight_format");
  EXPECT_THAT(quantized(model).obstacles(), IsEmpty());
}

// The table of broken ones.

struct PackedCorpus : Corpus {
  /// A quant_state with another value; nullptr: without the key.
  void state_value(const std::string& key, std::initializer_list<const char*> values,
                   const std::string& reason) {
    for (const char* value : values) {
      Config changed = state();
      if (value == nullptr) {
        changed.erase(key);
      } else {
        changed[key] = value;
      }
      Model model = nf4(changed);
      model.tensors["m.weight.absmax"].dtype = DType::U8;
      add(fmt::format("quant_state {}: {}", key, value == nullptr ? "absent" : value), model,
          "m.weight", reason);
    }
  }
  void state_text(const std::string& text, const std::string& reason) {
    Model model = nf4(state());
    model.tensors[kState] = {DType::U8, {static_cast<std::int64_t>(text.size())}, text};
    add("quant_state " + text.substr(0, 40), model, "m.weight", reason);
  }
};

constexpr std::int64_t kHuge = std::int64_t{1} << 58;

void add_broken_gptq(PackedCorpus& corpus) {
  const std::string codes = "m.qweight";
  for (const std::int64_t bits : {2, 3, 4, 8}) {
    const Model good = gptq(bits);
    const std::int64_t words = 96 * bits / 32;
    corpus.drop(good, "m.scales", codes, "there is no m.scales");
    corpus.drop(good, "m.qzeros", codes, "there is no m.qzeros");
    corpus.shape(good, "m.qzeros", {3, words}, codes, "does not go with scales of shape [2, 96]");
    corpus.shape(good, "m.qzeros", {2, words + 1}, codes, "");
    corpus.shape(good, "m.scales", {3, 96}, codes, "does not go with scales of shape [3, 96]");
    corpus.shape(good, "m.scales", {2, 95}, codes, "is neither GPTQ's nor AWQ's");
    corpus.shape(good, "m.g_idx", {63}, codes, "but 64 inputs need I32 of shape [64]");
    corpus.shape(good, codes, {64 * bits / 32, 97}, codes, "is neither GPTQ's nor AWQ's");
    corpus.config(good, "group_size", {"16", "64", "-1", "31"}, codes, "its scales have 2 groups");
    corpus.config(good, "bits", {"5", "1", "16"}, codes, "but config.json says");
  }
  const Model good = gptq();
  corpus.dtypes(good, codes, {DType::I8, DType::I16, DType::I64, DType::U8, DType::F32, DType::U32},
                codes, "not a matrix of I32");
  corpus.dtypes(good, "m.scales", {DType::F64, DType::I32, DType::F8E4M3, DType::U8}, codes,
                "(known: F16, BF16, F32)");
  corpus.dtypes(good, "m.qzeros", {DType::I64, DType::U8, DType::F16}, codes, "not I32");
  corpus.dtypes(good, "m.g_idx", {DType::I64, DType::F32, DType::U8}, codes, "its g_idx is");
  for (const std::string name : {"m.qweight", "m.qzeros", "m.scales"}) {
    corpus.shape(good, name, {96}, codes, name == codes ? "not a matrix" : "not two dimensions");
    corpus.shape(good, name, {2, 96, 1}, codes,
                 name == codes ? "not a matrix" : "not two dimensions");
    corpus.shape(good, name, {}, codes, name == codes ? "not a matrix" : "not two dimensions");
    corpus.shape(good, name, {0, 96}, codes, "has no elements");
    corpus.shape(good, name, {kHuge, 0}, codes, "has no elements");
  }
  corpus.shape(good, "m.g_idx", {1, 64}, codes, "its g_idx is");
  corpus.shape(good, "m.g_idx", {}, codes, "its g_idx is");
  corpus.shape(good, "m.g_idx", {0}, codes, "its g_idx is");
  // Widths that are none.
  for (const std::int64_t bits : {1, 5, 6, 7, 16, 32}) {
    Model model = gptq();
    model.tensors["m.qzeros"].shape = {2, 3 * bits};
    corpus.add(fmt::format("{} bits", bits), model, codes,
               fmt::format("its codes have {} bits (known: 2, 3, 4, 8)", bits));
  }
  Model wide = gptq();
  wide.tensors["m.scales"].shape = {1, 96};
  wide.tensors["m.qzeros"].shape = {1, kHuge};
  corpus.add("zero points whose bits are no number", wide, codes, "does not go with scales");
  // 3 bits: rows of words come in threes.
  Model thirds = gptq(3);
  thirds.tensors[codes].shape = {7, 96};
  corpus.add("words that end within codes", thirds, codes, "holds no whole codes of 3 bits");
  // Groups that nothing explains.
  for (const std::int64_t groups : {3, 65, 1000}) {
    Model model = gptq();
    model.config["dynamic"] = R"({"m": {}})";
    model.tensors["m.scales"].shape = {groups, 96};
    model.tensors["m.qzeros"].shape = {groups, 12};
    corpus.add(fmt::format("{} groups", groups), model, codes, "which do not divide 64 inputs");
  }
  corpus.config(good, "group_size", {"0", "-2", "-128"}, codes, "group_size is");
  corpus.config(good, "checkpoint_format",
                {"\"marlin\"", "\"gptq_p\"", "\"bitblas\"", "\"awq\"", "\"GPTQ\""}, codes,
                "(known: gptq, gptq_v2)");
  corpus.config(good, "is_marlin_format", {"true"}, codes, "(known: gptq, gptq_v2)");
  corpus.config(good, "quant_method", {"\"awq\""}, codes, "has the shape of GPTQ");
  corpus.config(good, "quant_method", {"\"fp8\"", "\"bitsandbytes\"", "\"compressed-tensors\""},
                codes, "but config.json says quant_method");
  corpus.config(good, "quant_method",
                {"\"aqlm\"", "\"quip\"", "\"hqq\"", "\"exl2\"", "\"\\u0000\""}, codes,
                "which ckfs cannot decode");
  Model twice = gptq();
  twice.tensors["m.weight"] = {DType::F16, {96, 64}, ""};
  corpus.add("a dense weight beside the codes", twice, codes, "decodes to m.weight");
  // A parameter may be called so.
  Model model = gptq();
  model.tensors["x.scales"] = {DType::F32, {64}, ""};
  corpus.add("also x.scales", model, "x.scales", "a part of a weight that is absent");
}

void add_broken_awq(PackedCorpus& corpus) {
  const std::string codes = "m.qweight";
  const Model good = awq();
  corpus.drop(good, "m.scales", codes, "there is no m.scales");
  corpus.drop(good, "m.qzeros", codes, "there is no m.qzeros");
  corpus.shape(good, "m.qzeros", {2, 11}, codes, "does not go with scales of shape [2, 96]");
  corpus.shape(good, "m.qzeros", {1, 12}, codes, "does not go with scales of shape [2, 96]");
  corpus.shape(good, codes, {64, 13}, codes, "is neither GPTQ's nor AWQ's");
  corpus.shape(good, "m.scales", {2, 104}, codes, "is neither GPTQ's nor AWQ's");
  corpus.shape(good, codes, {65, 12}, codes, "its scales have 2 groups");
  corpus.config(good, "version",
                {"\"gemv\"", "\"gemv_fast\"", "\"marlin\"", "\"exllama\"", "\"ipex\""}, codes,
                "(known: gemm)");
  corpus.config(good, "bits", {"2", "3", "8"}, codes, "but config.json says");
  corpus.config(good, "group_size", {"16", "128", "-1"}, codes, "its scales have 2 groups");
  corpus.config(good, "group_size", {"0", "-7"}, codes, "group_size is");
  corpus.config(good, "quant_method", {"\"gptq\""}, codes, "has the shape of AWQ");
  corpus.dtypes(good, "m.scales", {DType::F64, DType::F8E5M2}, codes, "(known: F16, BF16, F32)");
  corpus.dtypes(good, "m.qzeros", {DType::I8, DType::F16}, codes, "not I32");
}

void add_broken_bitsandbytes(PackedCorpus& corpus) {
  const std::string codes = "m.weight";
  const Model good = nf4(state());
  const Model plain = nf4(state(false));
  corpus.drop(good, "m.weight.absmax", codes, "there is no m.weight.absmax");
  corpus.drop(good, "m.weight.quant_map", codes, "there is no m.weight.quant_map");
  corpus.drop(good, "m.weight.nested_absmax", codes, "there is no m.weight.nested_absmax");
  corpus.drop(good, "m.weight.nested_quant_map", codes, "there is no m.weight.nested_quant_map");
  corpus.drop(good, kState, codes, "bitsandbytes 4-bit without quant_state");
  corpus.drop(plain, "m.weight.absmax", codes, "there is no m.weight.absmax");
  for (const std::int64_t blocks : {0, 1, 5, 7}) {
    corpus.shape(good, "m.weight.absmax", {blocks}, codes, "not U8 of shape [6]");
    corpus.shape(plain, "m.weight.absmax", {blocks}, codes, "not F32 of shape [6]");
  }
  corpus.shape(good, "m.weight.absmax", {6, 1}, codes, "not U8 of shape [6]");
  corpus.shape(good, "m.weight.quant_map", {15}, codes, "not F32 of shape [16]");
  corpus.shape(good, "m.weight.quant_map", {256}, codes, "not F32 of shape [16]");
  corpus.shape(good, "m.weight.nested_absmax", {1}, codes, "not F32 of shape [2]");
  corpus.shape(good, "m.weight.nested_absmax", {3}, codes, "not F32 of shape [2]");
  corpus.shape(good, "m.weight.nested_quant_map", {16}, codes, "not F32 of shape [256]");
  corpus.dtypes(good, "m.weight.absmax", {DType::F32, DType::I8}, codes, "its absmax is");
  corpus.dtypes(plain, "m.weight.absmax", {DType::U8, DType::F16}, codes, "its absmax is");
  corpus.dtypes(good, "m.weight.quant_map", {DType::F16, DType::BF16}, codes, "its quant_map is");
  corpus.dtypes(good, "m.weight.nested_absmax", {DType::F16}, codes, "its nested_absmax is");
  for (const std::int64_t size : {1, 164, 166, 330}) {
    corpus.shape(good, codes, {size, 1}, codes, "330 codes of 4 bits need 165");
  }
  corpus.shape(good, kState, {1 << 20}, codes, "");  // too large to be read
  corpus.shape(good, kState, {0}, codes, "");
  corpus.state_value("quant_type", {nullptr, "\"int4\"", "4", "null"}, "quant_type");
  corpus.state_value("quant_type", {"\"fp4\""}, "says fp4, but its name nf4");
  corpus.state_value("dtype", {nullptr, "\"float8\"", "\"torch.bfloat16\"", "16"}, "dtype");
  corpus.state_value("blocksize",
                     {nullptr, "0", "-64", "63", "64.5", "1e3", "\"64\"", "99999999999999999999",
                      "4294967296", "[64]"},
                     "blocksize");
  corpus.state_value("shape",
                     {nullptr, "[]", "33", "[33, 0]", "[33, -10]", "[3.5]", "[[33], 10]", "{}",
                      "[1,1,1,1,1,1,1,1,330]", "[\"33\", 10]"},
                     "shape");
  corpus.state_value("shape", {"[4294967296, 4294967296]", "[9223372036854775807, 2]"},
                     "which is not the size of a weight");
  corpus.state_value("shape", {"[33, 11]", "[1]", "[9223372036854775807]"}, "codes of 4 bits need");
  corpus.state_value("nested_blocksize", {"0", "-1", "1.5", "\"256\""}, "nested_blocksize");
  corpus.state_value("nested_blocksize", {"5000"}, "its nested_absmax is");
  corpus.state_value("nested_dtype", {nullptr, "\"float16\"", "\"int8\"", "32"}, "nested_dtype");
  corpus.state_value("nested_offset",
                     {nullptr, "\"0.1\"", "NaN", "Infinity", "1e39", "-1e300", "null", "[0]"},
                     "nested_offset");
  corpus.state_text("", "");
  corpus.state_text("not JSON", "");
  corpus.state_text("[1, 2]", "");
  corpus.state_text(R"({"quant_type": "nf4", "quant_type": "nf4"})", "twice");
  corpus.state_text(R"({"quant_type": "nf4")", "");
  corpus.state_text(std::string(5000, '['), "");
  corpus.state_text(std::string("{\"a\": \"\0\"}", 10), "");
  corpus.config(good, "quant_method", {"\"gptq\"", "\"fp8\""}, codes,
                "but config.json says quant_method");

  const Model bytes = int8();
  corpus.shape(bytes, "m.SCB", {32}, codes, "not F32 of shape [33]");
  corpus.shape(bytes, "m.SCB", {10}, codes, "not F32 of shape [33]");
  corpus.shape(bytes, "m.SCB", {33, 1}, codes, "not F32 of shape [33]");
  corpus.shape(bytes, "m.SCB", {}, codes, "not F32 of shape [33]");
  corpus.dtypes(bytes, "m.SCB", {DType::F16, DType::BF16, DType::F64}, codes, "its SCB is");
  corpus.shape(bytes, codes, {330}, codes, "is not that of a matrix");
  corpus.shape(bytes, codes, {3, 11, 10}, codes, "is not that of a matrix");
  corpus.shape(bytes, codes, {33, 0}, codes, "is not that of a matrix");
  for (const char format : {'\1', '\2', '\3', '\xff'}) {
    Model model = int8();
    model.tensors["m.weight_format"].content = std::string(1, format);
    corpus.add(fmt::format("weight_format {}", static_cast<int>(format)), model, codes,
               "its weight_format is not 0");
  }
  corpus.shape(bytes, "m.weight_format", {0}, codes, "its weight_format is not 0");
  corpus.shape(bytes, "m.weight_format", {std::int64_t{1} << 40}, codes,
               "its weight_format is not 0");
  corpus.config(bytes, "quant_method", {"\"gptq\"", "\"awq\""}, codes,
                "but config.json says quant_method");
}

TEST(BrokenQuantization, IsAnObstacleThatNamesTheTensorAndTheFact) {
  PackedCorpus corpus;
  add_broken_gptq(corpus);
  add_broken_awq(corpus);
  add_broken_bitsandbytes(corpus);
  EXPECT_GE(corpus.size(), 150U);
  corpus.expect_refused();
}

}  // namespace
}  // namespace ckfs
