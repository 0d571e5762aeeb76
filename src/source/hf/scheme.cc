#include "source/hf/scheme.h"

#include <algorithm>

#include "source/hf/schemes/schemes.h"

namespace ckfs {

std::span<const Scheme> quantization_schemes() {
  // Those that would take another's codes for theirs come last.
  static const std::array all = {
      kFp8,         kIntQuantized,  kQuanto, kPackQuantized, kNvfp4,         kMxfp4,  kGptOss,
      kModelOptFp4, kDeepSeekV4Fp4, kGptq,   kBitsandbytes4, kBitsandbytes8, kForeign};
  return all;
}

std::string_view without(std::string_view name, std::string_view suffix) {
  return name.substr(0, name.size() - suffix.size());
}

std::string_view module_of(std::string_view name) {
  return name.substr(0, std::min(name.rfind('.'), name.size()));
}

std::string kind_key(std::string_view encoding, std::span<const std::int64_t> numbers) {
  // Not as text: there is one to look up for each weight.
  const auto bytes = std::as_bytes(numbers);
  std::string key;
  key.reserve(encoding.size() + bytes.size());
  key += encoding;
  key.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return key;
}

namespace {

std::string format_of(const BlockScale& scale) {
  const std::string codes = scale.codes == DType::I32  ? fmt::format("int{}", scale.packing.bits)
                            : scale.codes == DType::F4 ? std::string("E2M1")
                                                       : std::string(name(scale.codes));
  return fmt::format("{}, {} scale{} for {}{}", codes, name(scale.scale),
                     scale.zeros == BlockScale::Zeros::None ? "" : " and zero", block_text(scale),
                     scale.groups ? ", columns in g_idx order" : "");
}

}  // namespace

std::shared_ptr<const WeightKind> block_scale_kind(const HeldTensors& tensors,
                                                   const BlockScale& scale) {
  const std::array<std::int64_t, 16> numbers = {static_cast<std::int64_t>(scale.codes),
                                                static_cast<std::int64_t>(scale.scale),
                                                scale.rows,
                                                scale.columns,
                                                scale.block_rows,
                                                scale.block_columns,
                                                scale.packing.bits,
                                                scale.packing.in_words ? 1 : 0,
                                                scale.padding,
                                                static_cast<std::int64_t>(scale.global),
                                                scale.global_each ? 1 : 0,
                                                static_cast<std::int64_t>(scale.zeros),
                                                scale.groups ? 1 : 0,
                                                scale.minus_zero ? 1 : 0,
                                                scale.wide_exponent ? 1 : 0,
                                                static_cast<std::int64_t>(scale.result)};
  return tensors.shared(kind_key("block scale", numbers),
                        [&] { return WeightKind{block_scale_encoding(scale), format_of(scale)}; });
}

std::optional<std::array<std::int64_t, 2>> block_of_scales(std::span<const std::int64_t> shape,
                                                           std::span<const std::int64_t> scales) {
  const std::span<const std::int64_t> batch = shape.first(shape.size() - 2);
  const std::int64_t rows = shape[shape.size() - 2];
  const std::int64_t columns = shape[shape.size() - 1];
  const auto is_one = [](std::int64_t extent) { return extent == 1; };
  // One number may have any number of dimensions.
  if (std::ranges::all_of(scales, is_one) && std::ranges::all_of(batch, is_one)) {
    return std::array{rows, columns};
  }
  if (scales.size() > shape.size()) return std::nullopt;
  std::vector<std::int64_t> grid(scales.begin(), scales.end());
  grid.resize(shape.size(), 1);
  if (!std::ranges::equal(std::span(grid).first(batch.size()), batch)) return std::nullopt;
  const std::int64_t down = grid[batch.size()];
  const std::int64_t across = grid.back();
  if (down == 1 && across == 1) return std::array{rows, columns};
  if (down == rows && across > 0 && columns % across == 0) {
    return std::array{std::int64_t{1}, columns / across};
  }
  if (down == 1 && across == columns) return std::array{rows, std::int64_t{1}};
  return std::nullopt;
}

std::string block_text(const BlockScale& scale) {
  const bool whole_rows = scale.block_columns == scale.columns - scale.padding;
  // A square of the usual block may be one of many weights in such blocks.
  const bool usual = scale.block_rows == 128 && scale.block_columns == 128;
  if (whole_rows && scale.block_rows == scale.rows && !usual) return "each tensor";
  if (whole_rows && scale.block_rows == 1) return "each row";
  if (scale.block_rows == scale.rows && scale.block_columns == 1) return "each column";
  return fmt::format("each {} x {}", scale.block_rows, scale.block_columns);
}

}  // namespace ckfs
