// Codes packed along columns of a transposed weight, with scales and zero points for groups of
// inputs: M.qweight, M.qzeros, M.scales and, of GPTQ, M.g_idx, which stand for M.weight.
//
//             GPTQ                          AWQ (the layout "gemm")
//   qweight   [inputs * bits / 32, outputs]  [inputs, outputs / 8]
//   qzeros    [groups, outputs * bits / 32]  [groups, outputs / 8]
//   scales    [groups, outputs]              the same
//   g_idx     [inputs]                       none
//
// Shapes say which of the two it is and how many bits a code has; the configuration says which
// zero points are stored, and has to agree where it says more.
#include <array>

#include "base/checked.h"
#include "base/rounding.h"
#include "encoding/affine_codes_encoding.h"
#include "source/hf/schemes/schemes.h"
#include "tensor/shape.h"

namespace ckfs {
namespace {

constexpr std::string_view kQweight = ".qweight";
constexpr std::int64_t kWordBits = 32;

/// The tensors of a weight.
struct GptqParts {
  TensorId codes = 0, scales = 0, zeros = 0;
  std::optional<TensorId> g_idx;
};

bool is_gptq(const HeldTensors& tensors, TensorId codes) {
  return tensors.name(codes).ends_with(kQweight);
}

Result<TensorId> part(const HeldTensors& tensors, std::string_view module,
                      std::string_view ending) {
  const auto id = tensors.find(module, ending);
  if (!id) return cannot_decode("there is no {}{}", module, ending);
  if (tensors.shape(*id).size() != 2) {
    return cannot_decode("{}{} has shape {}, not two dimensions", module, ending,
                         shape_text(tensors.shape(*id)));
  }
  return *id;
}

Result<GptqParts> parts_of(const HeldTensors& tensors, TensorId codes) {
  const std::string_view module = without(tensors.name(codes), kQweight);
  if (tensors.dtype(codes) != DType::I32 || tensors.shape(codes).size() != 2) {
    return cannot_decode("is {} of shape {}, not a matrix of I32", name(tensors.dtype(codes)),
                         shape_text(tensors.shape(codes)));
  }
  GptqParts parts{.codes = codes, .scales = 0, .zeros = 0, .g_idx = std::nullopt};
  CKFS_TRY(parts.scales, part(tensors, module, ".scales"));
  const DType scale = tensors.dtype(parts.scales);
  if (scale != DType::F16 && scale != DType::BF16 && scale != DType::F32) {
    return cannot_decode("its scales are {} (known: F16, BF16, F32)", name(scale));
  }
  CKFS_TRY(parts.zeros, part(tensors, module, ".qzeros"));
  if (tensors.dtype(parts.zeros) != DType::I32) {
    return cannot_decode("its qzeros are {}, not I32", name(tensors.dtype(parts.zeros)));
  }
  parts.g_idx = tensors.find(module, ".g_idx");
  for (const TensorId id : {parts.codes, parts.scales, parts.zeros}) {
    const auto shape = tensors.shape(id);
    if (shape[0] == 0 || shape[1] == 0) {
      return cannot_decode("{} of shape {} has no elements", tensors.name(id), shape_text(shape));
    }
  }
  return parts;
}

/// Fails where the configuration gives a number that is not `found`. Its `dynamic` says of modules
/// that they differ.
Result<void> agree(const HeldTensors& tensors, std::string_view key, std::string_view older_key,
                   std::int64_t found) {
  auto said = tensors.config().number(key);
  if (!said) said = tensors.config().number(older_key);
  if (!said || *said == found || tensors.config().overrides) return {};
  return cannot_decode("shapes give {} {}, but {} says {}", found, key, tensors.config().file,
                       *said);
}

/// Sets groups and group_rows from the number of groups that the scales have.
Result<void> set_groups(const HeldTensors& tensors, std::int64_t groups, AffineCodes& kind) {
  auto said = tensors.config().number("group_size");
  if (!said) said = tensors.config().number("q_group_size");
  if (said && *said < 1 && *said != -1) return cannot_decode("group_size is {}", *said);
  kind.groups = groups;
  if (said) kind.group_rows = *said == -1 ? kind.rows : std::min(*said, kind.rows);
  if (said && ceil_div(kind.rows, kind.group_rows) == groups) return {};
  if (said && !tensors.config().overrides) {
    return cannot_decode("its scales have {} groups, but groups of {} of {} inputs are {}", groups,
                         kind.group_rows, kind.rows, ceil_div(kind.rows, kind.group_rows));
  }
  if (groups > kind.rows || kind.rows % groups != 0) {
    return cannot_decode("its scales have {} groups, which do not divide {} inputs", groups,
                         kind.rows);
  }
  kind.group_rows = kind.rows / groups;
  return {};
}

/// The major version of GPTQModel that wrote the checkpoint; nullopt: another tool.
std::optional<int> gptqmodel_version(const HeldTensors& tensors) {
  std::string_view writer = tensors.config().value("meta.quantizer.0");
  if (writer.empty()) writer = tensors.config().value("meta.quantizer");
  constexpr std::string_view kName = "gptqmodel:";
  if (!writer.starts_with(kName)) return std::nullopt;
  int major = 0;
  for (const char c : writer.substr(kName.size())) {
    if (c < '0' || c > '9' || major > 1000) break;
    major = 10 * major + (c - '0');
  }
  return major;
}

/// How zero points of GPTQ are stored. Tools differ only where a field has all bits set.
Result<AffineCodes::Zeros> zeros_of(const HeldTensors& tensors, int bits) {
  const std::string_view format = tensors.config().value("checkpoint_format");
  if (tensors.config().value("is_marlin_format") == "true") {
    return cannot_decode("the layout \"marlin\" is unknown (known: gptq, gptq_v2)");
  }
  if (format == "gptq_v2") return AffineCodes::Zeros::Stored;
  if (!format.empty() && format != "gptq") {
    return cannot_decode("checkpoint_format \"{}\" is unknown (known: gptq, gptq_v2)", format);
  }
  const auto version = gptqmodel_version(tensors);
  if (!version) return AffineCodes::Zeros::PlusOne;
  return *version >= 7 || bits == 3 ? AffineCodes::Zeros::PlusOneWrapped
                                    : AffineCodes::Zeros::PlusOneInWords;
}

Result<AffineCodes> read_gptq(const HeldTensors& tensors, const GptqParts& parts) {
  const auto codes = tensors.shape(parts.codes);
  const auto scales = tensors.shape(parts.scales);
  const auto zeros = tensors.shape(parts.zeros);
  const auto zero_bits = checked_mul(zeros[1], kWordBits);
  if (zeros[0] != scales[0] || !zero_bits || *zero_bits % scales[1] != 0) {
    return cannot_decode("its qzeros have shape {}, which does not go with scales of shape {}",
                         shape_text(zeros), shape_text(scales));
  }
  const std::int64_t bits = *zero_bits / scales[1];
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8) {
    return cannot_decode("its codes have {} bits (known: 2, 3, 4, 8)", bits);
  }
  CKFS_TRY_VOID(agree(tensors, "bits", "w_bit", bits));
  const std::int64_t code_bits = codes[0] * kWordBits;  // of less than 2^57 words
  if (code_bits % bits != 0) {
    return cannot_decode("shape {} holds no whole codes of {} bits", shape_text(codes), bits);
  }
  AffineCodes kind{.bits = static_cast<int>(bits),
                   .rows = code_bits / bits,
                   .columns = codes[1],
                   .groups = 0,
                   .group_rows = 0};
  CKFS_TRY_VOID(set_groups(tensors, scales[0], kind));
  CKFS_TRY(kind.zeros, zeros_of(tensors, kind.bits));
  if (parts.g_idx) {
    const std::int64_t wanted[] = {kind.rows};
    const auto shape = tensors.shape(*parts.g_idx);
    if (tensors.dtype(*parts.g_idx) != DType::I32 || !std::ranges::equal(shape, wanted)) {
      return cannot_decode("its g_idx is {} of shape {}, but {} inputs need I32 of shape {}",
                           name(tensors.dtype(*parts.g_idx)), shape_text(shape), kind.rows,
                           shape_text(wanted));
    }
    const bool in_order =
        tensors.config().value("desc_act") == "false" && !tensors.config().overrides;
    kind.lookup = in_order ? AffineCodes::Lookup::Checked : AffineCodes::Lookup::Any;
  }
  return kind;
}

Result<AffineCodes> read_awq(const HeldTensors& tensors, const GptqParts& parts) {
  const auto codes = tensors.shape(parts.codes);
  const auto scales = tensors.shape(parts.scales);
  const auto zeros = tensors.shape(parts.zeros);
  const std::string_view version = tensors.config().value("version");
  if (!version.empty() && version != "gemm" && version != "GEMM") {
    return cannot_decode("version \"{}\" is unknown (known: gemm)", version);
  }
  CKFS_TRY_VOID(agree(tensors, "bits", "w_bit", 4));
  if (zeros[0] != scales[0] || zeros[1] != codes[1]) {
    return cannot_decode("its qzeros have shape {}, which does not go with scales of shape {}",
                         shape_text(zeros), shape_text(scales));
  }
  AffineCodes kind{.order = CodeOrder::Awq,
                   .rows = codes[0],
                   .columns = scales[1],
                   .groups = 0,
                   .group_rows = 0};
  CKFS_TRY_VOID(set_groups(tensors, scales[0], kind));
  return kind;
}

/// The layout, by shapes: a weight of GPTQ has a column of words for each output, one of AWQ for
/// each eight.
Result<QuantizedWeight> read_gptq(const HeldTensors& tensors, TensorId codes) {
  CKFS_TRY(const GptqParts parts, parts_of(tensors, codes));
  const std::int64_t words = tensors.shape(codes)[1];
  const std::int64_t outputs = tensors.shape(parts.scales)[1];
  const bool awq = outputs % 8 == 0 && words == outputs / 8;
  if (!awq && words != outputs) {
    return cannot_decode("shape {} is neither GPTQ's nor AWQ's beside scales of shape {}",
                         shape_text(tensors.shape(codes)), shape_text(tensors.shape(parts.scales)));
  }
  const std::string& method = tensors.config().method;
  if (method == (awq ? "gptq" : "awq")) {
    return cannot_decode("has the shape of {}, but {} says quant_method \"{}\"",
                         awq ? "AWQ" : "GPTQ", tensors.config().file, method);
  }
  CKFS_TRY(AffineCodes kind, awq ? read_awq(tensors, parts) : read_gptq(tensors, parts));
  kind.scale = tensors.dtype(parts.scales);
  QuantizedWeight weight;
  weight.name = std::string(without(tensors.name(codes), kQweight)) + ".weight";
  weight.shape = {kind.columns, kind.rows};
  weight.numel = kind.rows * kind.columns;  // at most 16 in each of less than 2^59 words
  weight.boxes = {StorageBox{0, 0, {0, 0}, weight.shape, {1, kind.columns}}};
  weight.companions = {parts.scales, parts.zeros};
  if (parts.g_idx && !awq) weight.companions.push_back(*parts.g_idx);
  const std::array<std::int64_t, 9> numbers = {static_cast<std::int64_t>(kind.order),
                                               kind.bits,
                                               static_cast<std::int64_t>(kind.scale),
                                               static_cast<std::int64_t>(kind.zeros),
                                               static_cast<std::int64_t>(kind.lookup),
                                               kind.rows,
                                               kind.columns,
                                               kind.groups,
                                               kind.group_rows};
  weight.kind = tensors.shared(kind_key("affine codes", numbers), [&] {
    return WeightKind{
        affine_codes_encoding(kind),
        fmt::format("{} int{}, {} scale and zero point for each {} inputs{}", awq ? "AWQ" : "GPTQ",
                    kind.bits, name(kind.scale), kind.group_rows,
                    kind.lookup == AffineCodes::Lookup::Any ? " in any order (g_idx)" : "")};
  });
  return weight;
}

}  // namespace

const Scheme kGptq{
    .name = "gptq or awq",
    .methods = {"gptq", "awq"},
    .auxiliaries = {".qzeros", ".scales", ".g_idx"},
    .recognizes = is_gptq,
    .wants = nullptr,
    .read = read_gptq,
    .casts_all = true,
};

}  // namespace ckfs
