// Tensors that look quantized and are not decoded: refused with the name of the scheme. Every
// tensor that no other scheme takes comes here, so each kind that is supported later leaves this
// list.
#include <array>

#include "source/hf/schemes/schemes.h"

namespace ckfs {
namespace {

/// The kind of quantization that a tensor's name, dtype and neighbours suggest; empty: none.
std::string_view kind_of(const HeldTensors& tensors, TensorId id) {
  const std::string_view name = tensors.name(id);
  const DType type = tensors.dtype(id);
  const auto with = [&](std::string_view suffix) { return tensors.find(name, suffix).has_value(); };
  if (name.ends_with("_blocks") && type == DType::U8 &&
      tensors.find(without(name, "_blocks"), "_scales")) {
    return "mxfp4";
  }
  if (name.ends_with(".weight_packed")) return "compressed-tensors";
  if (name.ends_with(".bitmask")) return "a sparse format of compressed-tensors";
  const std::string stem(name.substr(0, name.rfind('.') + 1));
  if (name.ends_with(".trellis") && tensors.find(stem, "svh")) return "EXL3";
  if (!name.ends_with("weight") && !name.ends_with("_proj")) return {};

  if (type == DType::U32 && name.ends_with(".weight") && tensors.find(stem, "scales")) return "MLX";
  if (type == DType::I32 && name.ends_with(".q_weight") && tensors.find(stem, "q_scale")) {
    return "EXL2";
  }
  const bool one_byte = is_f8(type) || type == DType::I8 || type == DType::U8;
  if (!one_byte) return {};
  if (with("_scale_2")) return "modelopt nvfp4";
  if (with("_scale")) return is_f8(type) ? "float-quantized" : "int-quantized";
  if (type == DType::U8 && with(".absmax")) return "bitsandbytes 4-bit without quant_state";
  const auto scale = tensors.find(stem, "scale");
  if (scale && tensors.dtype(*scale) == DType::F8E8M0) return "DeepSeek-V4 scales";
  return {};
}

bool is_foreign(const HeldTensors& tensors, TensorId id) {
  return !kind_of(tensors, id).empty();
}

Result<QuantizedWeight> read_foreign(const HeldTensors& tensors, TensorId id) {
  const std::string& method = tensors.config().method;
  if (!method.empty()) {
    return cannot_decode(
        "looks like {} (quant_method \"{}\"), which ckfs cannot "
        "decode",
        kind_of(tensors, id), method);
  }
  return cannot_decode("looks like {}, which ckfs cannot decode", kind_of(tensors, id));
}

}  // namespace

const Scheme kForeign{
    .name = "an unknown quantization",
    .methods = {},
    .formats = {},
    .auxiliaries = {},
    .recognizes = is_foreign,
    .wants = nullptr,
    .read = read_foreign,
};

}  // namespace ckfs
