// The table of labels in docs/FORMATS.md, made from what encodings say of themselves, so
// that the docs cannot promise another thing than the program does. Each row names the golden case
// that proves it; tests/api holds the labels of those cases against the values themselves.
#include <array>
#include <fmt/format.h>

#include "api/report.h"
#include "encoding/block_scale_encoding.h"
#include "encoding/plain_encoding.h"

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
  const std::array<Row, 7> rows{{
      {"FP8 with block scales", blocks.get(),
       "`deepseek-v3-fp8`, `deepseek-v31-ue8m0`, `qwen-fp8-bf16-scale`"},
      {"`BF16`", &plain_encoding(DType::BF16), "`llama-bf16`"},
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
