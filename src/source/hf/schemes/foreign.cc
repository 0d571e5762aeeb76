// What looks quantized and is not decoded: refused with the name of the thing. Every tensor that no
// other scheme takes comes here, so each kind that is supported later leaves this list.
#include <array>

#include "source/hf/schemes/schemes.h"

namespace ckfs {
namespace {

/// The kind of quantization that a tensor's name, dtype and neighbours speak of; empty: none.
std::string_view kind_of(const HeldTensors& tensors, TensorId id) {
  const std::string_view name = tensors.name(id);
  if (name.ends_with(".weight_packed")) return "compressed-tensors";
  if (name.ends_with(".bitmask")) return "a sparse format of compressed-tensors";
  if (tensors.dtype(id) != DType::U8 || !tensors.find(name, ".absmax")) return {};
  return "bitsandbytes 4-bit without quant_state";
}

bool recognizes(const HeldTensors& tensors, TensorId id) {
  return !kind_of(tensors, id).empty();
}

Result<QuantizedWeight> read(const HeldTensors& tensors, TensorId id) {
  const std::string& method = tensors.config().method;
  if (!method.empty()) {
    return cannot_decode("looks like {} (quant_method \"{}\"), which ckfs cannot decode",
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
    .recognizes = recognizes,
    .wants = nullptr,
    .read = read,
};

}  // namespace ckfs
