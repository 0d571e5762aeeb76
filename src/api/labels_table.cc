// The table of labels in docs/FORMATS.md, made from the encodings' own answers, so that the docs
// cannot promise anything else than the program does. Each row names the golden case that proves
// it; tests/api holds the labels of those cases against the values themselves.
#include <array>
#include <fmt/format.h>

#include "api/report.h"
#include "encoding/affine_codes_encoding.h"
#include "encoding/block_scale_encoding.h"
#include "encoding/plain_encoding.h"
#include "encoding/row_int8_encoding.h"
#include "encoding/table_codes_encoding.h"

namespace ckfs {
namespace {

struct Row {
  std::string_view stored;
  const Encoding* encoding;  // nullptr: never cast
  std::string_view proof;
};

std::string_view label(const Row& row, DType target) {
  return row.encoding ? name(row.encoding->exactness(target)) : "bit-exact (unchanged)";
}

}  // namespace

std::string labels_table() {
  const auto blocks =
      block_scale_encoding({.rows = 128, .columns = 128, .block_rows = 128, .block_columns = 128});
  const auto integers = block_scale_encoding({.codes = DType::I8,
                                              .scale = DType::BF16,
                                              .rows = 128,
                                              .columns = 128,
                                              .block_rows = 1,
                                              .block_columns = 32,
                                              .result = DType::BF16});
  const auto e2m1 = block_scale_encoding({.codes = DType::F4,
                                          .scale = DType::U8,
                                          .rows = 128,
                                          .columns = 128,
                                          .block_rows = 1,
                                          .block_columns = 32});
  const auto gptq =
      affine_codes_encoding({.rows = 128, .columns = 128, .groups = 1, .group_rows = 128});
  const auto nf4 = table_codes_encoding({});
  const auto int8 = row_int8_encoding(128);
  const std::array<Row, 13> rows{{
      {"FP8 with block scales", blocks.get(),
       "`deepseek-v3-fp8`, `deepseek-v31-ue8m0`, `qwen-fp8-bf16-scale`, `experts-deepseek-v3`"},
      {"FP8 with scales of tensors, rows or groups", blocks.get(),
       "`ct-fp8-tensor`, `ct-fp8-channel`, `ct-fp8-block`, `ct-mxfp8`, `modelopt-fp8`"},
      {"integers with BF16 scales (compressed-tensors)", integers.get(),
       "`kimi-k2-int4`, `ct-int4-zp`, `ct-int4-actorder`, `ct-int4-channel-odd`, `ct-int3-old`, "
       "`ct-int8-channel`"},
      {"FP4 (MXFP4, NVFP4)", e2m1.get(),
       "`gpt-oss-mxfp4`, `ct-mxfp4`, `ct-nvfp4`, `modelopt-nvfp4`"},
      {"GPTQ, AWQ", gptq.get(), "`gptq-int4`, `gptq-int4-actorder`, `gptq-int4-v2`, `awq-int4`"},
      {"bitsandbytes nf4, fp4 of BF16", nf4.get(), "`bnb-nf4-double`, `bnb-fp4`"},
      {"bitsandbytes int8", int8.get(), "`bnb-int8`"},
      {"`BF16`", &plain_encoding(DType::BF16),
       "`llama-bf16`, `experts-gpt-oss`, `experts-granitemoe`, `experts-llama4`, "
       "`experts-mixtral`, `experts-phimoe`, `experts-qwen3-moe`, `experts-qwen3-vl-moe`"},
      {"`F16`", &plain_encoding(DType::F16), "`every-dtype`"},
      {"`F32`", &plain_encoding(DType::F32), "`every-dtype`"},
      {"`F64`", &plain_encoding(DType::F64), "`every-dtype`"},
      {"F8 without a scale, F6, F4, `C64`", nullptr, "`every-dtype`"},
      {"integers, `BOOL`", nullptr, "`every-dtype`"},
  }};
  std::string text =
      "| stored as | `bf16-safetensors` | `fp16-safetensors` | `fp32-safetensors`, "
      "`fp32-consolidated` | proved by |\n|---|---|---|---|---|\n";
  for (const Row& row : rows) {
    text += fmt::format("| {} | {} | {} | {} | {} |\n", row.stored, label(row, DType::BF16),
                        label(row, DType::F16), label(row, DType::F32), row.proof);
  }
  return text;
}

}  // namespace ckfs
