// The table of labels in docs/FORMATS.md, made from the rule that labels tensors (exactness_of), so
// that the docs cannot promise another thing than the program does. Each row names the golden case
// that proves it; tests/api holds the labels of those cases against the values themselves.
#include <array>
#include <fmt/format.h>
#include <optional>

#include "api/report.h"
#include "view/view.h"

namespace ckfs {
namespace {

struct Row {
  std::string_view stored;
  bool decoded = false;
  std::optional<DType> dtype;  // absent: never cast
  std::string_view proof;
};

constexpr std::array<Row, 7> kRows{{
    {"FP8 with block scales", true, DType::F32,
     "`deepseek-v3-fp8`, `deepseek-v31-ue8m0`, `qwen-fp8-bf16-scale`"},
    {"`BF16`", false, DType::BF16, "`llama-bf16`"},
    {"`F16`", false, DType::F16, "`every-dtype`"},
    {"`F32`", false, DType::F32, "`every-dtype`"},
    {"`F64`", false, DType::F64, "`every-dtype`"},
    {"F8 without a scale, F6, F4, `C64`", false, std::nullopt, "`every-dtype`"},
    {"integers, `BOOL`", false, std::nullopt, "`every-dtype`"},
}};

std::string_view label(const Row& row, DType target) {
  return row.dtype ? name(exactness_of(row.decoded, *row.dtype, target)) : "bit-exact (unchanged)";
}

}  // namespace

std::string labels_table() {
  std::string text =
      "| stored as | `bf16-safetensors` | `fp16-safetensors` | `fp32-safetensors`, "
      "`fp32-consolidated` | proved by |\n|---|---|---|---|---|\n";
  for (const Row& row : kRows) {
    text += fmt::format("| {} | {} | {} | {} | {} |\n", row.stored, label(row, DType::BF16),
                        label(row, DType::F16), label(row, DType::F32), row.proof);
  }
  return text;
}

}  // namespace ckfs
