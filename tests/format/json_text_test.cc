// Edits of config.json: against the reference's own output where there is one, else against text
// written out by hand. Broken ones: malformed_test.cc.
#include "format/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "format/quantization_config.h"
#include "support/test_data.h"

namespace ckfs {
namespace {

std::string dense(std::string_view text, std::string_view dtype = "bfloat16") {
  const auto edited = dense_config(text, dtype, "config.json");
  EXPECT_TRUE(edited) << edited.error().message();
  EXPECT_EQ(edit_dense_config(text, dtype), edited.value_or("")) << "without another look";
  return edited.value_or("");
}

TEST(DenseConfig, EqualsTheReferencesConfig) {
  for (const std::string name : {"deepseek-v3-fp8", "deepseek-v31-ue8m0", "qwen-fp8-bf16-scale"}) {
    EXPECT_EQ(dense(read_test_data("hf/" + name + "/source/config.json")),
              read_test_data("hf/" + name + "/expected/bf16-safetensors/config.json"))
        << name;
  }
  const std::string llama = read_test_data("hf/llama-bf16/source/config.json");
  EXPECT_EQ(dense(llama, "float16"),
            read_test_data("hf/llama-bf16/expected/fp16-safetensors/config.json"));
  EXPECT_EQ(dense(llama, "float32"),
            read_test_data("hf/llama-bf16/expected/fp32-safetensors/config.json"));
  EXPECT_EQ(dense(llama), llama);
}

TEST(DenseConfig, FindsDtypesThatAreWrittenWithEscapes) {
  EXPECT_EQ(dense(R"({"dtype": "\u0066loat16", "torch_dtype": "int\u0038"})"),
            R"({"dtype": "bfloat16", "torch_dtype": "int\u0038"})");
}

TEST(DenseConfig, RemovesAMemberWithItsCommaWhereverItStands) {
  EXPECT_EQ(dense(R"({"quantization_config": {"a": 1}, "dtype": "float16", "b": 2})"),
            R"({"dtype": "bfloat16", "b": 2})");
  EXPECT_EQ(dense(R"({"dtype": "float16", "quantization_config": null, "b": 2})"),
            R"({"dtype": "bfloat16", "b": 2})");
  EXPECT_EQ(dense(R"({"dtype": "float16", "b": 2, "quantization_config": [1, "}"] })"),
            R"({"dtype": "bfloat16", "b": 2 })");
  EXPECT_EQ(
      dense(R"({"compression_config":1,"quantization_config":{"dtype":"float16"},"dtype":"half",)"
            R"("compression_config2":1})"),
      R"({"dtype":"bfloat16","compression_config2":1})");
  EXPECT_EQ(dense(R"({"dtype":"float","quantization_config":{},"compression_config":{}})"),
            R"({"dtype":"bfloat16"})");
}

TEST(DenseConfig, RemovesItAtEveryLevelEvenAsTheOnlyMember) {
  EXPECT_EQ(
      dense("{\n  \"dtype\": \"bfloat16\",\n  \"text_config\": {\n    \"quantization_config\": "
            "{}\n  },\n  \"list\": [{\"x\": {\"a\": 1, \"compression_config\": 1}}]\n}\n"),
      "{\n  \"dtype\": \"bfloat16\",\n  \"text_config\": {},\n  \"list\": [{\"x\": {\"a\": "
      "1}}]\n}\n");
}

TEST(DenseConfig, FindsKeysThatAreWrittenWithEscapes) {
  EXPECT_EQ(dense(R"({"quantiz\u0061tion_config": {}, "\u0064type": "float16"})"),
            R"({"\u0064type": "bfloat16"})");
}

TEST(DenseConfig, SetsDtypesOfNestedConfigsButNothingThatIsNoFloatDtype) {
  EXPECT_EQ(
      dense(R"({"torch_dtype": "float32", "vision_config": {"dtype": "float16", "x": "float16"},
                      "audio": {"dtype": null}, "k": {"dtype": "int8"}, "j": {"dtype": ["float16"]}})"),
      R"({"torch_dtype": "bfloat16", "vision_config": {"dtype": "bfloat16", "x": "float16"},
                      "audio": {"dtype": null}, "k": {"dtype": "int8"}, "j": {"dtype": ["float16"]}})");
}

TEST(DenseConfig, AddsTorchDtypeAsTheLastMemberInTheFilesOwnStyle) {
  EXPECT_EQ(dense("{\n    \"a\": 1,\n    \"b\": 2\n}\n"),
            "{\n    \"a\": 1,\n    \"b\": 2,\n    \"torch_dtype\": \"bfloat16\"\n}\n");
  EXPECT_EQ(dense("{\r\n\t\"a\": 1\r\n}"),
            "{\r\n\t\"a\": 1,\r\n\t\"torch_dtype\": \"bfloat16\"\r\n}");
  EXPECT_EQ(dense(R"({"a": 1})"), R"({"a": 1, "torch_dtype": "bfloat16"})");
  EXPECT_EQ(dense(R"({"a":1,"b":2})"), R"({"a":1,"b":2,"torch_dtype": "bfloat16"})");
  EXPECT_EQ(dense("{}"), R"({"torch_dtype": "bfloat16"})");
  EXPECT_EQ(dense("{\n  \"a\": 1,\n  \"quantization_config\": {}\n}"),
            "{\n  \"a\": 1,\n  \"torch_dtype\": \"bfloat16\"\n}");
  EXPECT_EQ(dense("{\n  \"quantization_config\": {}\n}"), "{\n  \"torch_dtype\": \"bfloat16\"\n}");
  EXPECT_EQ(dense(R"({"nested": {"dtype": "float16"}})"),
            R"({"nested": {"dtype": "bfloat16"}, "torch_dtype": "bfloat16"})");
}

TEST(DenseConfig, KeepsEveryOtherByteOfNumbersEscapesAndSpaces) {
  const std::string text =
      " {\"eps\" : 1e-06,\n\t\"big\":1.0000000000000000001, \"s\":\"\\u00e9\\/ü,}\" ,\"dtype\":"
      "\"bfloat16\", \"limits\":[0.0,Infinity, -Infinity,NaN]}\n\n";
  EXPECT_EQ(dense(text), text);
}

TEST(FindQuantization, TakesTheFirstPlaceThatHasOne) {
  const auto find = [](std::string_view text) {
    auto found = find_quantization(text, "config.json");
    EXPECT_TRUE(found) << found.error().message();
    return found.value_or(std::nullopt);
  };
  EXPECT_FALSE(find(R"({"a": {"b": [1, {"c": 2}]}})"));
  EXPECT_FALSE(find(R"({"quantization_config": null})"));
  EXPECT_EQ(find(R"({"quantization_config": {"quant_method": "fp8"},
                     "text_config": {"quantization_config": {"quant_method": "x"}}})")
                ->method,
            "fp8");
  EXPECT_EQ(find(R"({"compression_config": {"quant_method": "y"},
                     "text_config": {"quantization_config": {"quant_method": "x"}}})")
                ->method,
            "x");
  EXPECT_EQ(find(R"({"compression_config": {"quant_method": "y"}})")->method, "y");
  EXPECT_EQ(find(R"({"thinker": {"llm": {"quantization_config": {"quant_method": "z"}}}})")->method,
            "z");
  EXPECT_EQ(find(R"({"quantization_config": {"load_in_4bit": true}})")->method, "");
}

TEST(FindQuantization, KeepsNoMoreThanSomeMegabytesOfValues) {
  const std::string key(1000, 'k');
  std::string zeros = "0";
  for (int i = 0; i < 10'000; ++i) zeros += ",0";
  const auto found = find_quantization(
      fmt::format(R"({{"quantization_config": {{"quant_method": "fp8", "{}": {{"{}": [{}]}}}}}})",
                  key, key, zeros),
      "config.json");
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().message(),
            "config.json: quantization_config has values that take more than 16777216 bytes");
}

TEST(FindQuantization, PassesOverKeysThatComeTwiceWhereNothingIsRead) {
  for (const std::string_view text :
       {R"({"a": 1, "a": 2, "quantization_config": {"quant_method": "fp8"}})",
        R"({"a": {"b": 1, "b": 2}, "quantization_config": {"quant_method": "fp8"}})",
        R"({"quantization_config": {"quant_method": "fp8", "dynamic": {"b": 1, "b": 2}}})",
        R"({"quantization_config": {"quant_method": "fp8", "config_groups": {"g": {
            "weights": {"num_bits": 4}, "input_activations": {"b": 1, "b": 2}}}}})"}) {
    const auto found = find_quantization(text, "config.json");
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_EQ(found.value().value().method, "fp8");
  }
}

TEST(QuantizationFiles, HaveNoKeyTwice) {
  const auto modelopt = parse_modelopt(
      R"({"quantization": {"quant_algo": "FP8"}, "quantization": {"quant_algo": "NVFP4"}})",
      "hf_quant_config.json");
  ASSERT_FALSE(modelopt);
  EXPECT_EQ(modelopt.error().message(),
            "hf_quant_config.json: \"quantization\" 2 times in one object");
  const auto whole =
      parse_quantization_file(R"({"bits": 4, "bits": 8})", "quantize_config.json", "gptq");
  ASSERT_FALSE(whole);
  EXPECT_EQ(whole.error().message(), "quantize_config.json: \"bits\" 2 times in one object");
}

TEST(FindQuantization, ReadsTheBlockStructureInBothSpellings) {
  const auto block = [](const std::string& value) {
    return find_quantization(
        R"({"quantization_config": {"config_groups": {"g": {"weights": {"block_structure": )" +
            value + "}}}}}",
        "config.json");
  };
  for (const char* const text : {"[128, 64]", R"("128x64")"}) {
    const auto found = block(text);
    ASSERT_TRUE(found) << found.error().message();
    EXPECT_EQ((*found)->groups.at(0).weights->block_structure,
              (std::array<std::int64_t, 2>{128, 64}));
  }
  for (const char* const text : {R"("128")", R"("128x")", R"("x64")", R"("1x2x3")", R"("0x1")"}) {
    const auto found = block(text);
    ASSERT_FALSE(found) << text;
    EXPECT_THAT(found.error().message(), testing::HasSubstr("block_structure")) << text;
  }
}

TEST(FindQuantization, ReadsTheBlockSize) {
  const auto block = [](const std::string& value) {
    const auto found = find_quantization(
        R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": )" + value + "}}",
        "config.json");
    EXPECT_TRUE(found) << found.error().message();
    return found.value().value().weight_block_size;
  };
  EXPECT_EQ(block("[128, 64]"), (std::array<std::int64_t, 2>{128, 64}));
  EXPECT_EQ(block("null"), std::nullopt);
}

TEST(DenseConfig, KnowsKeysHoweverTheyAreEscaped) {
  for (const char* key : {"quantization_config", R"(\u0071uantization_config)",
                          R"(quantization\u005Fconfig)", R"(quantization_confi\u0067)"}) {
    const std::string text = fmt::format(R"({{"dtype": "bfloat16", "{}": {{}}}})", key);
    EXPECT_EQ(dense_config(text, "bfloat16", "c").value(), R"({"dtype": "bfloat16"})");
  }
  for (const char* key :
       {R"(\u0071uantization_confi)", R"(\u0171uantization_config)", R"(\u0071uantization_configs)",
        R"(quantization\u005Fconfig\u0067)", R"(\u0071)", R"(\\u0071uantization_config)",
        R"(\nuantization_config)", ""}) {
    const std::string text = fmt::format(R"({{"dtype": "bfloat16", "{}": {{}}}})", key);
    EXPECT_EQ(dense_config(text, "bfloat16", "c").value(), text);
  }
}

}  // namespace
}  // namespace ckfs
