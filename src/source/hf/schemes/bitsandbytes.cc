// bitsandbytes: codes of 4 bits, whose shape and statistics are described by JSON in a tensor, and
// signed bytes with a scale for each row.
//
//   W                                       the codes, two in a byte, whatever their dtype is
//   called W.absmax, W.quant_map                   scales of blocks; the values of the codes
//   W.nested_absmax, W.nested_quant_map     where the scales are codes, too
//   W.quant_state.bitsandbytes__nf4 (fp4)   the JSON
//
//   M.weight, M.SCB, M.weight_format        signed bytes, scales of rows, the layout: 0, rows
#include <array>
#include <bit>

#include "base/checked.h"
#include "base/rounding.h"
#include "encoding/row_int8_encoding.h"
#include "encoding/table_codes_encoding.h"
#include "format/quant_state.h"
#include "source/hf/schemes/schemes.h"
#include "tensor/shape.h"

namespace ckfs {
namespace {

constexpr std::array<std::string_view, 2> kTypes = {"nf4", "fp4"};

std::string state_name(std::string_view type) {
  return fmt::format(".quant_state.bitsandbytes__{}", type);
}

/// The tensor with the JSON, and the type that its name gives.
std::optional<std::pair<TensorId, std::string_view>> state_of(const HeldTensors& tensors,
                                                              TensorId codes) {
  // Codes are stored as a column: asked first, because names are looked up for every tensor.
  const auto shape = tensors.shape(codes);
  if (shape.size() != 2 || (shape[0] != 1 && shape[1] != 1)) return std::nullopt;
  for (const std::string_view type : kTypes) {
    if (const auto id = tensors.find(tensors.name(codes), state_name(type))) return {{*id, type}};
  }
  return std::nullopt;
}

bool is_nibbles(const HeldTensors& tensors, TensorId codes) {
  return state_of(tensors, codes).has_value();
}

void wants_state(const HeldTensors& tensors, TensorId codes, std::vector<WantedTensor>& out) {
  out.push_back({state_of(tensors, codes)->first});
}

/// The tensor W + `ending` of `count` elements of `dtype`.
Result<TensorId> part(const HeldTensors& tensors, TensorId codes, std::string_view ending,
                      DType dtype, std::int64_t count) {
  const std::string_view weight = tensors.name(codes);
  const auto id = tensors.find(weight, ending);
  if (!id) return cannot_decode("there is no {}{}", weight, ending);
  const auto shape = tensors.shape(*id);
  if (tensors.dtype(*id) != dtype || shape.size() != 1 || shape[0] != count) {
    return cannot_decode("its {} is {} of shape {}, not {} of shape [{}]", ending.substr(1),
                         name(tensors.dtype(*id)), shape_text(shape), name(dtype), count);
  }
  return *id;
}

Result<QuantizedWeight> read_nibbles(const HeldTensors& tensors, TensorId codes) {
  const auto [state_id, type] = *state_of(tensors, codes);
  const auto text = tensors.content(state_id);
  auto parsed = parse_quant_state({reinterpret_cast<const char*>(text.data()), text.size()},
                                  tensors.name(state_id));
  if (!parsed) return cannot_decode("{}", parsed.error().message());
  const QuantState& state = *parsed;
  if (state.type != type) {
    return cannot_decode("its quant_state says {}, but its name {}", state.type, type);
  }
  const auto numel = checked_numel(state.shape);
  if (!numel || *numel == 0) {
    return cannot_decode("its quant_state has shape {}, which is not the size of a weight",
                         shape_text(state.shape));
  }
  const auto stored = checked_numel(tensors.shape(codes));
  const auto bytes = nbytes(tensors.dtype(codes), stored.value_or(0));
  const auto needed = static_cast<std::uint64_t>(ceil_div<std::int64_t>(*numel, 2));
  if (!bytes || *bytes != needed) {
    return cannot_decode("has {} bytes, but {} codes of 4 bits need {}", bytes.value_or(0), *numel,
                         needed);
  }
  const bool nested = state.nested.has_value();
  const std::int64_t blocks = ceil_div(*numel, state.block);
  TableCodes kind{
      .values = state.dtype,
      .block = state.block,
      .nested_block = nested ? state.nested->block : 0,
      .nested_offset = nested ? state.nested->offset : 0,
      // On CPU the library takes another way, with the file's table, where rows are odd.
      .negative_zero = type == "fp4" && state.shape.back() % 2 == 0};
  QuantizedWeight weight;
  CKFS_TRY(const TensorId absmax,
           part(tensors, codes, ".absmax", nested ? DType::U8 : DType::F32, blocks));
  CKFS_TRY(const TensorId map, part(tensors, codes, ".quant_map", DType::F32, 16));
  weight.companions = {absmax, map};
  if (nested) {
    CKFS_TRY(const TensorId nested_absmax, part(tensors, codes, ".nested_absmax", DType::F32,
                                                ceil_div(blocks, kind.nested_block)));
    CKFS_TRY(const TensorId nested_map, part(tensors, codes, ".nested_quant_map", DType::F32, 256));
    weight.companions.push_back(nested_absmax);
    weight.companions.push_back(nested_map);
  }
  weight.left_out = {state_id};
  weight.shape = state.shape;
  weight.numel = *numel;
  // Every nested one has an offset of its own.
  const std::array<std::int64_t, 6> numbers = {type == "fp4" ? 1 : 0,
                                               static_cast<std::int64_t>(kind.values),
                                               kind.block,
                                               kind.nested_block,
                                               std::bit_cast<std::int32_t>(kind.nested_offset),
                                               kind.negative_zero ? 1 : 0};
  weight.kind = tensors.shared(kind_key("table codes", numbers), [&] {
    return WeightKind{table_codes_encoding(kind),
                      fmt::format("{} of {}, {} scale for each {} elements", type,
                                  name(kind.values), nested ? "nested" : "F32", kind.block)};
  });
  return weight;
}

bool is_llm_int8(const HeldTensors& tensors, TensorId codes) {
  return tensors.dtype(codes) == DType::I8 && tensors.name(codes).ends_with(".weight") &&
         tensors.find(module_of(tensors.name(codes)), ".SCB").has_value();
}

void wants_format(const HeldTensors& tensors, TensorId codes, std::vector<WantedTensor>& out) {
  const auto format = tensors.find(module_of(tensors.name(codes)), ".weight_format");
  if (format) out.push_back({*format});
}

Result<QuantizedWeight> read_llm_int8(const HeldTensors& tensors, TensorId codes) {
  const auto shape = tensors.shape(codes);
  const TensorId scale = *tensors.find(module_of(tensors.name(codes)), ".SCB");
  const auto scale_shape = tensors.shape(scale);
  if (shape.size() != 2 || shape[0] == 0 || shape[1] == 0) {
    return cannot_decode("shape {} is not that of a matrix with elements", shape_text(shape));
  }
  if (tensors.dtype(scale) != DType::F32 || scale_shape.size() != 1 || scale_shape[0] != shape[0]) {
    return cannot_decode("its SCB is {} of shape {}, not F32 of shape [{}]",
                         name(tensors.dtype(scale)), shape_text(scale_shape), shape[0]);
  }
  QuantizedWeight weight;
  if (const auto id = tensors.find(module_of(tensors.name(codes)), ".weight_format")) {
    const auto format = tensors.content(*id);
    if (format.size() != 1 || format[0] != std::byte{0}) {
      return cannot_decode("its weight_format is not 0 (rows), the only one ckfs decodes");
    }
    weight.left_out = {*id};
  }
  weight.shape.assign(shape.begin(), shape.end());
  weight.numel = shape[0] * shape[1];
  weight.companions = {scale};
  const std::array columns = {shape[1]};
  weight.kind = tensors.shared(kind_key("row int8", columns), [&] {
    return WeightKind{row_int8_encoding(shape[1]), "I8, F32 scale for each row"};
  });
  return weight;
}

}  // namespace

const Scheme kBitsandbytes4{
    .name = "bitsandbytes 4-bit",
    .methods = {"bitsandbytes"},
    .auxiliaries = {".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map",
                    ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"},
    .recognizes = is_nibbles,
    .wants = wants_state,
    .read = read_nibbles,
    .casts_all = false,
};

const Scheme kBitsandbytes8{
    .name = "bitsandbytes int8",
    .methods = {"bitsandbytes"},
    .auxiliaries = {".SCB", ".weight_format"},
    .recognizes = is_llm_int8,
    .wants = wants_format,
    .read = read_llm_int8,
    .casts_all = false,
};

}  // namespace ckfs
