#include "source/hf/scheme.h"

#include <algorithm>

#include "source/hf/schemes/schemes.h"

namespace ckfs {

std::span<const Scheme> quantization_schemes() {
  // Those that would take another's codes for theirs come last.
  static const std::array all = {kFp8,   kIntQuantized,  kPackQuantized, kNvfp4,
                                 kMxfp4, kGptOss,        kModelOptFp4,   kDeepSeekV4Fp4,
                                 kGptq,  kBitsandbytes4, kBitsandbytes8, kForeign};
  return all;
}

bool is_f8(DType dtype) {
  return dtype == DType::F8E4M3 || dtype == DType::F8E5M2 || dtype == DType::F8E4M3FNUZ ||
         dtype == DType::F8E5M2FNUZ;
}

std::string_view without(std::string_view name, std::string_view suffix) {
  return name.substr(0, name.size() - suffix.size());
}

std::string_view module_of(std::string_view name) {
  return name.substr(0, std::min(name.rfind('.'), name.size()));
}

std::shared_ptr<const Encoding> shared_block_scale(const HeldTensors& tensors,
                                                   const BlockScale& scale) {
  std::string key = fmt::format(
      "block scale {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", static_cast<int>(scale.codes),
      static_cast<int>(scale.scale), scale.rows, scale.columns, scale.block_rows,
      scale.block_columns, scale.packing.bits, scale.packing.in_words, scale.padding,
      static_cast<int>(scale.global), scale.global_each, static_cast<int>(scale.zeros),
      scale.groups, scale.minus_zero, scale.wide_exponent, static_cast<int>(scale.result));
  return tensors.shared(std::move(key), [&] { return block_scale_encoding(scale); });
}

std::optional<std::array<std::int64_t, 2>> block_of_scales(std::span<const std::int64_t> shape,
                                                           std::span<const std::int64_t> scales) {
  const std::int64_t rows = shape[shape.size() - 2];
  const std::int64_t columns = shape[shape.size() - 1];
  // Dimensions of 1 are written or left out as the tool likes.
  std::vector<std::int64_t> has(scales.begin(), scales.end());
  std::erase(has, 1);
  const auto is = [&](std::vector<std::int64_t> wanted) {
    wanted.insert(wanted.begin(), shape.begin(), shape.end() - 2);
    std::erase(wanted, 1);
    return has == wanted;
  };
  if (is({})) return std::array{rows, columns};
  if (is({rows})) return std::array{std::int64_t{1}, columns};
  const std::int64_t across = scales.empty() ? 1 : scales.back();
  if (scales.size() == shape.size() && across > 1 && columns % across == 0 && is({rows, across})) {
    return std::array{std::int64_t{1}, columns / across};
  }
  return std::nullopt;
}

std::string block_text(const BlockScale& scale) {
  const bool whole_rows = scale.block_columns == scale.columns - scale.padding;
  // A square of the usual block may be one of many weights in such blocks.
  const bool usual = scale.block_rows == 128 && scale.block_columns == 128;
  if (whole_rows && scale.block_rows == scale.rows && !usual) return "each tensor";
  if (whole_rows && scale.block_rows == 1) return "each row";
  return fmt::format("each {} x {}", scale.block_rows, scale.block_columns);
}

}  // namespace ckfs
