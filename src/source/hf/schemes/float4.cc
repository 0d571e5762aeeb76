// Codes of E2M1, two in a byte, with a scale for each 16 or 32 elements of a row:
//
//   M.weight_packed  compressed-tensors: nvfp4-pack-quantized (E4M3 scales, and a scale that
//   divides
//                    them), mxfp4-pack-quantized (E8M0 as U8)
//   W                ModelOpt: U8, W_scale and, for NVFP4, W_scale_2, which multiplies; beside a
//                    parameter P that is not a module's weight P_weight_scale, P_weight_scale_2
//   P_blocks         gpt-oss: groups are a dimension of their own, matrices the transpose of what
//                    transformers holds under the name P
//   M.weight         DeepSeek-V4's routed experts: I8 beside M.scale
#include <algorithm>
#include <numeric>

#include "base/checked.h"
#include "source/hf/schemes/schemes.h"
#include "tensor/shape.h"

namespace ckfs {
namespace {

constexpr std::int64_t kMx = 32;  // elements of a group of OCP's MX formats
constexpr std::int64_t kNv = 16;  // of NVFP4

constexpr std::string_view kPacked = ".weight_packed";
constexpr std::string_view kBlocks = "_blocks";

/// A weight whose codes have `shape`, two in a byte; `rows` of it lie one behind another.
Result<QuantizedWeight> make(const HeldTensors& tensors, std::vector<std::int64_t> shape,
                             BlockScale kind, TensorId scale, std::int64_t group) {
  kind.codes = DType::F4;
  kind.scale = tensors.dtype(scale);
  if (shape.size() != 2 && shape.size() != 3) {
    return cannot_decode("shape {} is not of 2 or 3 dimensions", shape_text(shape));
  }
  const auto numel = checked_numel(shape);
  if (!numel || *numel == 0) return cannot_decode("shape {} has no elements", shape_text(shape));
  kind.rows = shape[shape.size() - 2];
  kind.columns = shape.back();
  kind.block_rows = 1;
  kind.block_columns = group;
  std::vector<std::int64_t> needed = shape;
  needed.back() = kind.columns / group;
  if (kind.columns % group != 0 || !std::ranges::equal(tensors.shape(scale), needed)) {
    return cannot_decode("its scale has shape {}, but groups of {} over shape {} need {}",
                         shape_text(tensors.shape(scale)), group, shape_text(shape),
                         shape_text(needed));
  }
  QuantizedWeight weight;
  weight.shape = std::move(shape);
  weight.companions = {scale};
  weight.numel = *numel;
  weight.kind = block_scale_kind(tensors, kind);
  return weight;
}

/// The shape of the elements, two in each byte of a row.
std::vector<std::int64_t> doubled(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> wide(shape.begin(), shape.end());
  // A hostile number of columns has no elements: that is refused.
  if (!wide.empty()) wide.back() = wide.back() > (std::int64_t{1} << 61) ? 0 : wide.back() * 2;
  return wide;
}

/// The scale of the scales: one number, or one for each matrix.
Result<void> add_global(const HeldTensors& tensors, TensorId global, std::int64_t matrices,
                        BlockScale& kind) {
  const auto numel = checked_numel(tensors.shape(global));
  if (tensors.dtype(global) == DType::F32 && (numel == 1 || numel == matrices)) {
    kind.global_each = numel != 1;
    return {};
  }
  return cannot_decode("the scale of its scales is {} {} (known: one F32)",
                       name(tensors.dtype(global)), shape_text(tensors.shape(global)));
}

Failure wrong_scale(DType dtype, std::string_view known) {
  return cannot_decode("its scale is {} (known: {})", name(dtype), known);
}

// compressed-tensors.

bool is_packed_fp4(const HeldTensors& tensors, TensorId codes) {
  return tensors.name(codes).ends_with(kPacked) && tensors.dtype(codes) == DType::U8;
}

bool is_nvfp4(const HeldTensors& tensors, TensorId codes) {
  return is_packed_fp4(tensors, codes) &&
         tensors.find(module_of(tensors.name(codes)), ".weight_global_scale").has_value();
}

Result<QuantizedWeight> read_packed(const HeldTensors& tensors, TensorId codes) {
  const std::string_view module = module_of(tensors.name(codes));
  const auto scale = tensors.find(module, ".weight_scale");
  const auto global = tensors.find(module, ".weight_global_scale");
  if (!scale) return cannot_decode("without its weight_scale");
  const DType dtype = tensors.dtype(*scale);
  BlockScale kind;
  if (global) {
    if (dtype != DType::F8E4M3) return wrong_scale(dtype, "F8_E4M3");
    kind.global = BlockScale::Global::Divides;
    CKFS_TRY_VOID(add_global(tensors, *global, 1, kind));
  } else if (dtype != DType::U8 && dtype != DType::F8E8M0) {
    return wrong_scale(dtype, "U8, F8_E8M0");
  }
  CKFS_TRY(QuantizedWeight weight,
           make(tensors, doubled(tensors.shape(codes)), kind, *scale, global ? kNv : kMx));
  if (global) weight.companions.push_back(*global);
  if (const auto shape = tensors.find(module, ".weight_shape")) weight.left_out.push_back(*shape);
  weight.name = std::string(module) + ".weight";
  return weight;
}

// ModelOpt.

/// The scales of a weight, under whichever of two spellings one of them is there.
struct ModelOptScales {
  std::string_view spelling = "_scale";
  std::optional<TensorId> scale, global;

  ModelOptScales(const HeldTensors& tensors, std::string_view name) {
    scale = tensors.find(name, "_scale");
    global = tensors.find(name, "_scale_2");
    if (scale || global) return;
    // Of NVFP4 alone: no tool is known that spells the scales of MXFP4 so.
    global = tensors.find(name, "_weight_scale_2");
    if (!global) return;
    spelling = "_weight_scale";
    scale = tensors.find(name, spelling);
  }
};

bool is_modelopt(const HeldTensors& tensors, TensorId codes) {
  if (tensors.dtype(codes) != DType::U8) return false;
  const ModelOptScales scales(tensors, tensors.name(codes));
  return scales.global || (scales.scale && tensors.dtype(*scales.scale) == DType::U8);
}

Result<QuantizedWeight> read_modelopt(const HeldTensors& tensors, TensorId codes) {
  const std::string_view name = tensors.name(codes);
  const std::string_view module = module_of(name);
  const std::string algorithm(tensors.config().value("quant_algo"));
  for (const std::string_view beside : {".pre_quant_scale", ".svdquant_lora_a"}) {
    if (!tensors.find(module, beside)) continue;
    return cannot_decode("its {} is part of the weight, too", beside.substr(1));
  }
  if (algorithm.ends_with("_AWQ") || algorithm.ends_with("_SVD")) {
    return cannot_decode("quantized by {}, which scales activations, too", algorithm);
  }
  const ModelOptScales scales(tensors, name);
  const auto& [spelling, scale, global] = scales;
  if (!scale) return cannot_decode("without {}{}", name, spelling);
  const std::vector<std::int64_t> shape = doubled(tensors.shape(codes));
  BlockScale kind;
  if (global) {
    if (tensors.dtype(*scale) != DType::F8E4M3) {
      return wrong_scale(tensors.dtype(*scale), "F8_E4M3");
    }
    kind.global = BlockScale::Global::Multiplies;
    kind.minus_zero = false;
    CKFS_TRY_VOID(add_global(tensors, *global, shape.size() == 3 ? shape[0] : 1, kind));
  }
  CKFS_TRY(QuantizedWeight weight, make(tensors, shape, kind, *scale, global ? kNv : kMx));
  if (global) weight.companions.push_back(*global);
  return weight;
}

// gpt-oss.

bool is_gpt_oss(const HeldTensors& tensors, TensorId codes) {
  const std::string_view name = tensors.name(codes);
  return name.ends_with(kBlocks) && tensors.dtype(codes) == DType::U8 &&
         tensors.find(without(name, kBlocks), "_scales").has_value();
}

Result<QuantizedWeight> read_gpt_oss(const HeldTensors& tensors, TensorId codes) {
  const std::string_view base = without(tensors.name(codes), kBlocks);
  const auto scale = *tensors.find(base, "_scales");
  const auto blocks = tensors.shape(codes);
  if (blocks.size() != 4 || blocks[3] != kMx / 2 || blocks[2] > (std::int64_t{1} << 57)) {
    return cannot_decode("shape {} is not of 4 dimensions, the last of 16", shape_text(blocks));
  }
  if (tensors.dtype(scale) != DType::U8) return wrong_scale(tensors.dtype(scale), "U8");
  const std::int64_t columns = blocks[2] * kMx;
  BlockScale kind;
  kind.wide_exponent = true;
  CKFS_TRY(QuantizedWeight weight,
           make(tensors, {blocks[0], blocks[1], columns}, kind, scale, kMx));
  weight.name = std::string(base);
  weight.shape = {blocks[0], columns, blocks[1]};
  StorageBox box;
  box.begin = {0, 0, 0};
  box.count = weight.shape;
  box.stride = {blocks[1] * columns, 1, columns};
  weight.boxes.push_back(std::move(box));
  return weight;
}

// DeepSeek-V4.

bool is_v4(const HeldTensors& tensors, TensorId codes) {
  if (tensors.dtype(codes) != DType::I8 || !tensors.name(codes).ends_with(".weight")) return false;
  const auto scale = tensors.find(module_of(tensors.name(codes)), ".scale");
  return scale && tensors.dtype(*scale) == DType::F8E8M0;
}

Result<QuantizedWeight> read_v4(const HeldTensors& tensors, TensorId codes) {
  const auto scale = *tensors.find(module_of(tensors.name(codes)), ".scale");
  return make(tensors, doubled(tensors.shape(codes)), BlockScale{}, scale, kMx);
}

}  // namespace

const Scheme kNvfp4{
    .name = "nvfp4-pack-quantized",
    .methods = {"compressed-tensors"},
    .formats = {"nvfp4-pack-quantized"},
    .auxiliaries = {".weight_global_scale"},
    .recognizes = is_nvfp4,
    .wants = nullptr,
    .read = read_packed,
};

const Scheme kMxfp4{
    .name = "mxfp4-pack-quantized",
    .methods = {"compressed-tensors"},
    .formats = {"mxfp4-pack-quantized"},
    .auxiliaries = {},
    .recognizes = is_packed_fp4,
    .wants = nullptr,
    .read = read_packed,
};

const Scheme kGptOss{
    .name = "mxfp4",
    .methods = {"mxfp4"},
    .formats = {},
    .auxiliaries = {"_scales"},
    .recognizes = is_gpt_oss,
    .wants = nullptr,
    .read = read_gpt_oss,
};

const Scheme kModelOptFp4{
    .name = "modelopt fp4",
    .methods = {"modelopt", "modelopt_fp4", "modelopt_mixed"},
    .formats = {},
    .auxiliaries = {".weight_scale_2", "_weight_scale_2"},
    .recognizes = is_modelopt,
    .wants = nullptr,
    .read = read_modelopt,
};

const Scheme kDeepSeekV4Fp4{
    .name = "DeepSeek-V4 fp4",
    .methods = {"fp8", "mxfp4"},
    .formats = {},
    .auxiliaries = {},
    .recognizes = is_v4,
    .wants = nullptr,
    .read = read_v4,
};

}  // namespace ckfs
