// One byte for each element and scales beside it, under the names that tools gave them:
//
//   W_scale_inv      DeepSeek, Qwen, transformers' fp8; blocks, and groups of a row for mxfp8
//   W_scale          compressed-tensors (float-, int-, naive-, mxfp8-quantized), fbgemm, ModelOpt,
//                    AutoFP8; one for the tensor, a row, a group of a row, or a block
//   M.scale          DeepSeek-V4, beside M.weight
//   M.qscale_weight  Mistral's own format, beside M.weight
//
// Which of these shapes a scale has is read from its shape; only where blocks at the edges are
// partial, or a grid would fit two readings, the configuration decides.
#include <algorithm>

#include "base/checked.h"
#include "base/rounding.h"
#include "encoding/block_scale_encoding.h"
#include "source/hf/schemes/schemes.h"
#include "tensor/shape.h"

namespace ckfs {
namespace {

constexpr std::array<std::int64_t, 2> kDefaultBlock = {128, 128};
constexpr std::int64_t kMicroscaling = 32;  // elements that share a scale of OCP's MX formats

struct Found {
  TensorId id = 0;
  enum class Name { Inverse, Scale, V4, Mistral } name = Name::Inverse;
};

std::optional<Found> scale_of(const HeldTensors& tensors, TensorId codes) {
  const std::string_view name = tensors.name(codes);
  if (const auto id = tensors.find(name, "_scale_inv")) return Found{*id, Found::Name::Inverse};
  if (const auto id = tensors.find(name, "_scale")) return Found{*id, Found::Name::Scale};
  constexpr std::string_view kWeight = ".weight";
  if (!name.ends_with(kWeight)) return std::nullopt;
  const std::string_view module = without(name, kWeight);
  if (const auto id = tensors.find(module, ".qscale_weight")) {
    return Found{*id, Found::Name::Mistral};
  }
  const auto id = tensors.find(module, ".scale");
  if (id && tensors.dtype(*id) == DType::F8E8M0) return Found{*id, Found::Name::V4};
  return std::nullopt;
}

bool recognizes(const HeldTensors& tensors, TensorId codes) {
  return is_f8(tensors.dtype(codes)) && scale_of(tensors, codes).has_value();
}

bool is_scale_dtype(DType dtype) {
  return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F8E8M0 ||
         dtype == DType::U8;
}

/// The shape of a grid of blocks.
std::vector<std::int64_t> grid_of(std::span<const std::int64_t> shape,
                                  std::array<std::int64_t, 2> block) {
  std::vector<std::int64_t> grid(shape.begin(), shape.end());
  grid[grid.size() - 2] = ceil_div(grid[grid.size() - 2], block[0]);
  grid[grid.size() - 1] = ceil_div(grid[grid.size() - 1], block[1]);
  return grid;
}

/// `shape` without its dimensions of 1.
std::vector<std::int64_t> squeezed(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> rest(shape.begin(), shape.end());
  std::erase(rest, 1);
  return rest;
}

/// The block that the configuration gives; nullopt: none.
std::optional<std::array<std::int64_t, 2>> configured_block(const HeldTensors& tensors,
                                                            TensorId codes) {
  const std::string_view name = tensors.name(codes);
  const QuantizationGroup* group =
      tensors.group(name.substr(0, std::min(name.rfind('.'), name.size())));
  if (group != nullptr && group->weights) {
    if (group->weights->block_structure) return group->weights->block_structure;
    if (group->weights->strategy == "block") return kDefaultBlock;
  }
  return tensors.config().weight_block_size;
}

/// The block whose grid the scale is.
Result<std::array<std::int64_t, 2>> block_of(const HeldTensors& tensors, TensorId codes,
                                             const Found& scale) {
  const auto shape = tensors.shape(codes);
  const auto grid = tensors.shape(scale.id);
  const std::int64_t rows = shape[shape.size() - 2];
  const std::int64_t columns = shape[shape.size() - 1];
  const auto configured = configured_block(tensors, codes);
  const bool blocks_only =
      scale.name == Found::Name::Inverse && tensors.dtype(scale.id) != DType::U8;
  if (!blocks_only && !configured) {
    // Leading dimensions are those of the weight, or left out where there is one matrix.
    const std::vector<std::int64_t> rest = squeezed(grid);
    const std::vector<std::int64_t> batch = squeezed(shape.first(shape.size() - 2));
    const auto is = [&](std::vector<std::int64_t> wanted) {
      wanted.insert(wanted.begin(), batch.begin(), batch.end());
      std::erase(wanted, 1);
      return rest == wanted;
    };
    if (is({})) return std::array{rows, columns};
    if (is({rows})) return std::array{std::int64_t{1}, columns};
    const std::int64_t across = grid.empty() ? 1 : grid.back();
    if (grid.size() == shape.size() && across > 1 && columns % across == 0 && is({rows, across})) {
      return std::array{std::int64_t{1}, columns / across};
    }
  }
  const bool micro =
      !configured && tensors.dtype(scale.id) == DType::U8 && tensors.config().method == "mxfp8";
  const std::array<std::int64_t, 2> block =
      micro ? std::array{std::int64_t{1}, kMicroscaling} : configured.value_or(kDefaultBlock);
  const std::vector<std::int64_t> needed = grid_of(shape, block);
  if (!std::ranges::equal(grid, needed)) {
    return cannot_decode("its scale has shape {}, but blocks of {} x {} over shape {} need {}",
                         shape_text(grid), block[0], block[1], shape_text(shape),
                         shape_text(needed));
  }
  return block;
}

std::string block_text(std::array<std::int64_t, 2> block, std::int64_t rows, std::int64_t columns) {
  if (block[0] >= rows && block[1] >= columns && block != kDefaultBlock) return "each tensor";
  if (block[0] == 1 && block[1] >= columns) return "each row";
  return fmt::format("each {} x {}", block[0], block[1]);
}

Result<QuantizedWeight> read(const HeldTensors& tensors, TensorId codes) {
  const Found scale = *scale_of(tensors, codes);
  const auto shape = tensors.shape(codes);
  const DType dtype = tensors.dtype(scale.id);
  if (!is_scale_dtype(dtype)) {
    return cannot_decode("its scale is {} (known: F32, BF16, F8_E8M0, U8)", name(dtype));
  }
  if (shape.size() != 2 && shape.size() != 3) {
    return cannot_decode("shape {} is not of 2 or 3 dimensions", shape_text(shape));
  }
  if (std::ranges::find(shape, 0) != shape.end()) {
    return cannot_decode("shape {} has no elements", shape_text(shape));
  }
  CKFS_TRY(const auto block, block_of(tensors, codes, scale));
  const BlockScale kind{.codes = tensors.dtype(codes),
                        .scale = dtype,
                        .rows = shape[shape.size() - 2],
                        .columns = shape[shape.size() - 1],
                        .block_rows = block[0],
                        .block_columns = block[1]};
  QuantizedWeight weight;
  weight.shape.assign(shape.begin(), shape.end());
  weight.numel = *checked_numel(shape);
  weight.companions = {scale.id};
  weight.format = fmt::format("{}, {} scale for {}", name(kind.codes), name(kind.scale),
                              block_text(block, kind.rows, kind.columns));
  weight.encoding =
      tensors.shared(fmt::format("{} {} {}x{} {}x{}", name(kind.codes), name(kind.scale), kind.rows,
                                 kind.columns, kind.block_rows, kind.block_columns),
                     [&] { return block_scale_encoding(kind); });
  return weight;
}

}  // namespace

const Scheme kFp8{
    .name = "fp8",
    .methods = {"fp8", "mxfp8", "compressed-tensors", "fbgemm_fp8", "modelopt"},
    .auxiliaries = {"_scale_inv", ".weight_scale", ".qscale_weight"},
    .recognizes = recognizes,
    .wants = nullptr,
    .read = read,
};

}  // namespace ckfs
