// One byte for each element and scales beside it, under the names that tools gave them:
//
//   W_scale_inv      DeepSeek, Qwen, transformers' fp8; blocks, groups of a row for mxfp8, or one
//                    scalar for the tensor
//   W_scale          compressed-tensors (float-, int-, naive-, mxfp8-quantized), fbgemm, ModelOpt,
//                    AutoFP8; one for the tensor, a row, a group of a row, a column, or a block
//   M.scale          DeepSeek-V4, beside M.weight
//   M.qscale_weight  Mistral's own format, beside M.weight
//   M.scale_weight   ComfyUI, beside M.weight
//   P_weight_scale   ModelOpt, beside a parameter P that is not a module's weight
//   W._scale         quanto, beside the codes W._data
//
// Which of these shapes a scale has is read from its shape; only where blocks at the edges are
// partial, or a grid would fit two readings, the configuration decides.
#include <algorithm>

#include "base/checked.h"
#include "base/rounding.h"
#include "source/hf/schemes/schemes.h"
#include "tensor/shape.h"

namespace ckfs {
namespace {

using Block = std::array<std::int64_t, 2>;

constexpr Block kDefaultBlock = {128, 128};
constexpr std::string_view kWeight = ".weight";

struct Found {
  TensorId id = 0;
  bool blocks_only = false;         // DeepSeek's names
  bool compressed_tensors = false;  // whose values have the scale's dtype
};

std::optional<Found> scale_of(const HeldTensors& tensors, TensorId codes) {
  const std::string_view name = tensors.name(codes);
  if (const auto id = tensors.find(name, "_scale_inv")) {
    return Found{.id = *id, .blocks_only = tensors.dtype(*id) != DType::U8};
  }
  const std::string& method = tensors.config().method;
  if (const auto id = tensors.find(name, "_scale")) {
    return Found{.id = *id, .compressed_tensors = method.empty() || method == "compressed-tensors"};
  }
  if (!name.ends_with(kWeight)) {
    const auto id = tensors.find(name, "_weight_scale");
    return id ? std::optional(Found{.id = *id}) : std::nullopt;
  }
  for (const std::string_view ending : {".qscale_weight", ".scale_weight"}) {
    if (const auto id = tensors.find(module_of(name), ending)) return Found{.id = *id};
  }
  const auto id = tensors.find(module_of(name), ".scale");
  if (id && tensors.dtype(*id) == DType::F8E8M0) return Found{.id = *id, .blocks_only = true};
  return std::nullopt;
}

bool is_fp8(const HeldTensors& tensors, TensorId codes) {
  return is_f8(tensors.dtype(codes)) && scale_of(tensors, codes).has_value();
}

bool is_int8(const HeldTensors& tensors, TensorId codes) {
  return tensors.dtype(codes) == DType::I8 && tensors.name(codes).ends_with("weight") &&
         tensors.find(tensors.name(codes), "_scale").has_value();
}

/// The shape of a grid of blocks.
std::vector<std::int64_t> grid_of(std::span<const std::int64_t> shape, Block block) {
  std::vector<std::int64_t> grid(shape.begin(), shape.end());
  grid[grid.size() - 2] = ceil_div(grid[grid.size() - 2], block[0]);
  grid[grid.size() - 1] = ceil_div(grid[grid.size() - 1], block[1]);
  return grid;
}

/// The block that the configuration gives; nullopt: none.
std::optional<Block> configured_block(const HeldTensors& tensors, TensorId codes) {
  const QuantizationGroup* group = tensors.group(module_of(tensors.name(codes)));
  if (group != nullptr && group->weights) {
    if (group->weights->block_structure) return group->weights->block_structure;
    if (group->weights->strategy == "block") return kDefaultBlock;
  }
  return tensors.config().weight_block_size;
}

/// Whether it is an expert's weight of transformers' fbgemm, [experts, inputs, outputs], with a
/// scale for each output. That of down_proj has the shape [experts, outputs, 1].
bool is_fbgemm_down(const HeldTensors& tensors, std::span<const std::int64_t> shape,
                    std::span<const std::int64_t> grid) {
  if (tensors.config().method != "fbgemm_fp8" || shape.size() != 3) return false;
  return std::ranges::equal(grid, std::array<std::int64_t, 3>{shape[0], shape[2], 1});
}

/// The shape of the scale as it is, or where it is that of ModelOpt's blocks, [down, 1, across, 1],
/// without the ones.
std::vector<std::int64_t> grid_of_scale(std::span<const std::int64_t> scale,
                                        std::size_t dimensions) {
  std::vector<std::int64_t> grid(scale.begin(), scale.end());
  if (scale.size() != 2 * dimensions) return grid;
  grid.clear();
  for (std::size_t d = 0; d < scale.size(); d += 2) {
    if (scale[d + 1] != 1) return {scale.begin(), scale.end()};
    grid.push_back(scale[d]);
  }
  return grid;
}

/// The block whose grid the scale is.
Result<Block> block_of(const HeldTensors& tensors, TensorId codes, const Found& scale) {
  const auto shape = tensors.shape(codes);
  const auto grid = grid_of_scale(tensors.shape(scale.id), shape.size());
  if (is_fbgemm_down(tensors, shape, grid)) return Block{shape[1], 1};
  const auto configured = configured_block(tensors, codes);
  // A grid of [1, 1] may be one block of a small weight; a scalar is not a grid.
  if (!configured && (!scale.blocks_only || grid.empty())) {
    if (const auto block = block_of_scales(shape, grid)) return *block;
  }
  const Block block = configured.value_or(kDefaultBlock);
  const std::vector<std::int64_t> needed = grid_of(shape, block);
  if (std::ranges::equal(grid, needed)) return block;
  // transformers saves one scale of a weight, or of an expert's, as a grid of [1, 1].
  const Block whole = {shape[shape.size() - 2], shape[shape.size() - 1]};
  if (!configured && std::ranges::equal(grid, grid_of(shape, whole))) return whole;
  return cannot_decode("its scale has shape {}, but blocks of {} x {} over shape {} need {}",
                       shape_text(tensors.shape(scale.id)), block[0], block[1], shape_text(shape),
                       shape_text(needed));
}

bool is_scale_dtype(DType dtype, bool sixteen_bits) {
  return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F8E8M0 ||
         dtype == DType::U8 || (sixteen_bits && dtype == DType::F16);
}

Result<QuantizedWeight> read_scaled(const HeldTensors& tensors, TensorId codes) {
  const auto found = scale_of(tensors, codes);
  const auto shape = tensors.shape(codes);
  const DType dtype = tensors.dtype(found->id);
  if (!is_scale_dtype(dtype, found->compressed_tensors)) {
    return cannot_decode("its scale is {} (known: F32, BF16, F8_E8M0, U8)", name(dtype));
  }
  if (shape.size() != 2 && shape.size() != 3) {
    return cannot_decode("shape {} is not of 2 or 3 dimensions", shape_text(shape));
  }
  if (std::ranges::find(shape, 0) != shape.end()) {
    return cannot_decode("shape {} has no elements", shape_text(shape));
  }
  if (tensors.find(module_of(tensors.name(codes)), ".pre_quant_scale")) {
    return cannot_decode("its pre_quant_scale is part of the weight, too");
  }
  CKFS_TRY(const Block block, block_of(tensors, codes, *found));
  BlockScale kind{.codes = tensors.dtype(codes),
                  .scale = dtype,
                  .rows = shape[shape.size() - 2],
                  .columns = shape[shape.size() - 1],
                  .block_rows = block[0],
                  .block_columns = block[1]};
  if (found->compressed_tensors && is_castable_float(dtype)) kind.result = dtype;
  QuantizedWeight weight;
  weight.companions = {found->id};
  if (const auto zeros = tensors.find(tensors.name(codes), "_zero_point")) {
    if (kind.codes != DType::I8 || tensors.dtype(*zeros) != DType::I8 ||
        !std::ranges::equal(tensors.shape(*zeros), tensors.shape(found->id))) {
      return cannot_decode("its zero points are {} {} (known: I8 in the shape of the scale)",
                           name(tensors.dtype(*zeros)), shape_text(tensors.shape(*zeros)));
    }
    kind.zeros = BlockScale::Zeros::Integers;
    weight.companions.push_back(*zeros);
  }
  weight.shape.assign(shape.begin(), shape.end());
  weight.numel = *checked_numel(shape);
  weight.kind = block_scale_kind(tensors, kind);
  return weight;
}

// quanto.

constexpr std::string_view kData = "._data";

/// The name of the weight whose codes these are; empty: they are not quanto's.
std::string_view quanto_weight(const HeldTensors& tensors, TensorId codes) {
  std::string_view name = tensors.name(codes);
  if (!name.ends_with(kData)) return {};
  name = without(name, kData);
  // Codes of less than a byte are packed in a tensor within the tensor.
  if (name.ends_with(kData)) name = without(name, kData);
  return tensors.find(name, "._scale") ? name : std::string_view();
}

bool is_quanto(const HeldTensors& tensors, TensorId codes) {
  return !quanto_weight(tensors, codes).empty();
}

/// Codes times a scale for the tensor, or for each index of its first or its last dimension, in the
/// scale's dtype.
Result<QuantizedWeight> read_quanto(const HeldTensors& tensors, TensorId codes) {
  const std::string_view name = quanto_weight(tensors, codes);
  const auto shape = tensors.shape(codes);
  const DType type = tensors.dtype(codes);
  if (name.size() + kData.size() != tensors.name(codes).size() || tensors.find(name, "._shift")) {
    return cannot_decode("quanto's codes of 2 or 4 bits, in groups (known: qint8, qfloat8)");
  }
  if (type != DType::I8 && !is_f8(type)) {
    return cannot_decode("{} as codes of quanto (known: I8, F8)", ckfs::name(type));
  }
  const TensorId scale = *tensors.find(name, "._scale");
  const DType scale_type = tensors.dtype(scale);
  if (scale_type != DType::F32 && scale_type != DType::BF16 && scale_type != DType::F16) {
    return cannot_decode("its scale is {} (known: F32, BF16, F16)", ckfs::name(scale_type));
  }
  const auto numel = checked_numel(shape);
  if (shape.empty() || !numel || *numel == 0) {
    return cannot_decode("shape {} has no elements", shape_text(shape));
  }
  const auto grid = tensors.shape(scale);
  const auto is_along = [&](std::size_t d) {
    std::vector<std::int64_t> wanted(shape.size(), 1);
    wanted[d] = shape[d];
    return std::ranges::equal(grid, wanted);
  };
  BlockScale kind{.codes = type, .scale = scale_type, .result = scale_type};
  if (std::ranges::all_of(grid, [](std::int64_t extent) { return extent == 1; })) {
    kind.rows = kind.block_rows = *numel / shape.back();
    kind.columns = kind.block_columns = shape.back();
  } else if (is_along(0)) {
    kind.rows = shape[0];
    kind.block_rows = 1;
    kind.columns = kind.block_columns = *numel / shape[0];
  } else if (is_along(shape.size() - 1)) {
    kind.rows = kind.block_rows = *numel / shape.back();
    kind.columns = shape.back();
    kind.block_columns = 1;
  } else {
    return cannot_decode(
        "its scale has shape {}, which is not that of a tensor, a row or a column of {}",
        shape_text(grid), shape_text(shape));
  }
  QuantizedWeight weight;
  weight.name = std::string(name);
  weight.shape.assign(shape.begin(), shape.end());
  weight.numel = *numel;
  weight.companions = {scale};
  weight.kind = block_scale_kind(tensors, kind);
  return weight;
}

}  // namespace

const Scheme kFp8{
    .name = "fp8",
    .methods = {"fp8", "mxfp8", "compressed-tensors", "fbgemm_fp8", "modelopt", "modelopt_mixed"},
    .formats = {"float-quantized", "naive-quantized", "mxfp8-quantized"},
    .auxiliaries = {"_scale_inv", ".weight_scale", "_weight_scale", ".qscale_weight",
                    ".scale_weight", ".comfy_quant"},
    .recognizes = is_fp8,
    .wants = nullptr,
    .read = read_scaled,
};

const Scheme kIntQuantized{
    .name = "int-quantized",
    .methods = {"compressed-tensors"},
    .formats = {"int-quantized", "naive-quantized"},
    .auxiliaries = {".weight_zero_point"},
    .recognizes = is_int8,
    .wants = nullptr,
    .read = read_scaled,
};

const Scheme kQuanto{
    .name = "quanto",
    .methods = {"quanto"},
    .formats = {},
    .auxiliaries = {"._scale", "._shift"},
    .recognizes = is_quanto,
    .wants = nullptr,
    .read = read_quanto,
};

}  // namespace ckfs
