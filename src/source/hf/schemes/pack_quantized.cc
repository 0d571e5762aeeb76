// Whole numbers of 1 to 8 bits in words of 32 bits (compressed-tensors pack-quantized):
// M.weight_packed with M.weight_scale, M.weight_shape and sometimes M.weight_zero_point and
// M.weight_g_idx.
//
// A row's length is in weight_shape only, a tensor of two numbers; a model may have 70,000 of them
// in as many places. Where there are groups of a known size it follows from the scales' shape, and
// weight_shape is at most compared.
#include <algorithm>
#include <charconv>

#include "base/checked.h"
#include "base/load_le.h"
#include "base/rounding.h"
#include "source/hf/schemes/schemes.h"
#include "tensor/shape.h"

namespace ckfs {
namespace {

constexpr std::int64_t kWord = 32;
constexpr std::int64_t kMaxColumns = std::int64_t{1} << 40;
constexpr std::int64_t kMaxBits = 8;

bool is_packed(const HeldTensors& tensors, TensorId codes) {
  return tensors.name(codes).ends_with(".weight_packed") && tensors.dtype(codes) == DType::I32;
}

/// What belongs to a weight.
struct PackedParts {
  std::optional<TensorId> scale, shape, zeros, groups;
  WeightArguments arguments;

  PackedParts(const HeldTensors& tensors, TensorId codes) {
    const std::string_view module = module_of(tensors.name(codes));
    scale = tensors.find(module, ".weight_scale");
    shape = tensors.find(module, ".weight_shape");
    zeros = tensors.find(module, ".weight_zero_point");
    groups = tensors.find(module, ".weight_g_idx");
    const QuantizationGroup* group = tensors.group(module);
    if (group != nullptr && group->weights) arguments = *group->weights;
  }

  /// The length of a row, where the shapes and the configuration say it.
  std::optional<std::int64_t> columns(const HeldTensors& tensors) const {
    if (!scale || !arguments.num_bits || !arguments.group_size) return std::nullopt;
    const auto grid = tensors.shape(*scale);
    const bool by_group = arguments.strategy.empty() || arguments.strategy == "group";
    if (!by_group || grid.size() != 2 || grid[1] < 1 || grid[1] > kMaxColumns / 2) {
      return std::nullopt;
    }
    const auto columns = checked_mul(grid[1], *arguments.group_size);
    return columns && *columns <= kMaxColumns ? columns : std::nullopt;
  }
};

bool is_two_integers(const HeldTensors& tensors, TensorId id) {
  const auto shape = tensors.shape(id);
  return (tensors.dtype(id) == DType::I64 || tensors.dtype(id) == DType::I32) &&
         shape.size() == 1 && shape[0] == 2;
}

void wants(const HeldTensors& tensors, TensorId codes, std::vector<WantedTensor>& out) {
  const PackedParts parts(tensors, codes);
  if (parts.shape && is_two_integers(tensors, *parts.shape))
    out.push_back({*parts.shape, parts.columns(tensors).has_value()});
}

/// The two numbers of weight_shape; nullopt: it was not read.
Result<std::optional<std::array<std::int64_t, 2>>> stored_shape(const HeldTensors& tensors,
                                                                TensorId id) {
  if (!is_two_integers(tensors, id)) {
    return cannot_decode("its weight_shape is {} {} (known: two I64 or I32)",
                         name(tensors.dtype(id)), shape_text(tensors.shape(id)));
  }
  const std::span<const std::byte> bytes = tensors.content(id);
  if (bytes.empty()) return std::nullopt;
  if (tensors.dtype(id) == DType::I64) {
    return std::array{load_le<std::int64_t>(bytes), load_le<std::int64_t>(bytes.subspan(8))};
  }
  return std::array<std::int64_t, 2>{load_le<std::int32_t>(bytes),
                                     load_le<std::int32_t>(bytes.subspan(4))};
}

/// The length of a row, as weight_shape and, where there are groups, the scale's shape tell.
Result<std::int64_t> row_length(const HeldTensors& tensors, const PackedParts& parts,
                                std::int64_t rows) {
  const std::optional<std::int64_t> by_groups = parts.columns(tensors);
  std::optional<std::array<std::int64_t, 2>> stored;
  if (parts.shape) {
    CKFS_TRY(stored, stored_shape(tensors, *parts.shape));
  }
  if (!stored) {
    if (!by_groups) return cannot_decode("without its weight_shape");
    return *by_groups;
  }
  const auto& [stored_rows, columns] = *stored;
  if (stored_rows != rows || columns < 1 || columns > kMaxColumns) {
    return cannot_decode("its weight_shape says {}, but it has {} rows", shape_text(*stored), rows);
  }
  if (by_groups && *by_groups != columns) {
    return cannot_decode(
        "its weight_shape says {}, but a scale of shape {} and groups of {} are {}",
        shape_text(*stored), shape_text(tensors.shape(*parts.scale)), *parts.arguments.group_size,
        shape_text(std::array{rows, *by_groups}));
  }
  return columns;
}

/// Whether a version of compressed-tensors packed odd widths in whole words: before 0.18.
std::optional<bool> packs_in_words(std::string_view version) {
  int major = 0, minor = 0;
  const char* const end = version.data() + version.size();
  const auto first = std::from_chars(version.data(), end, major);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '.') return std::nullopt;
  if (std::from_chars(first.ptr + 1, end, minor).ec != std::errc()) return std::nullopt;
  return major == 0 && minor < 18;
}

/// The only width with which so many words hold a row, where the configuration does not say it.
Result<std::int64_t> only_width(const HeldTensors& tensors, std::int64_t columns,
                                std::int64_t words) {
  const auto old = packs_in_words(tensors.config().value("version"));
  std::vector<std::int64_t> widths;
  for (std::int64_t bits = 1; bits <= kMaxBits; ++bits) {
    const bool odd = kWord % bits != 0;
    const bool dense = words == ceil_div(columns * bits, kWord);
    const bool in_words = words == ceil_div<std::int64_t>(columns, kWord / bits);
    if ((dense && !(odd && old == true)) || (in_words && old != false)) widths.push_back(bits);
  }
  if (widths.size() == 1) return widths.front();
  if (widths.empty()) {
    return cannot_decode(
        "config.json does not say its num_bits, and {} words in a row hold {} codes of no width",
        words, columns);
  }
  return cannot_decode(
      "config.json does not say its num_bits, and {} words in a row may be {} codes of {} bits",
      words, columns, fmt::join(widths, " or "));
}

Result<Packing> packing_of(const HeldTensors& tensors, std::int64_t columns, std::int64_t words,
                           int bits) {
  const std::int64_t dense = ceil_div(columns * bits, kWord);
  const auto in_words = ceil_div<std::int64_t>(columns, kWord / bits);
  if (words != dense && words != in_words) {
    return cannot_decode(
        "{} words in a row, but {} codes of {} bits need {}", words, columns, bits,
        dense == in_words ? fmt::format("{}", dense) : fmt::format("{} or {}", dense, in_words));
  }
  if (kWord % bits == 0 || dense != in_words) {
    return Packing{bits, kWord % bits != 0 && words == in_words};
  }
  const auto old = packs_in_words(tensors.config().value("version"));
  if (!old) {
    return cannot_decode(
        "{} words hold {} codes of {} bits in two ways, and config.json has no "
        "version of compressed-tensors, which decides",
        words, columns, bits);
  }
  return Packing{bits, *old};
}

Result<void> add_zeros(const HeldTensors& tensors, const PackedParts& parts, BlockScale& kind) {
  if (!parts.zeros) {
    if (parts.arguments.symmetric.value_or(true)) return {};
    return cannot_decode("without its weight_zero_point, but config.json says symmetric: false");
  }
  if (parts.arguments.symmetric.value_or(false)) {
    return cannot_decode("with a weight_zero_point, but config.json says symmetric: true");
  }
  const std::int64_t rows = ceil_div(kind.rows, kind.block_rows);
  const std::int64_t across = ceil_div(kind.columns - kind.padding, kind.block_columns);
  const std::int64_t words = kind.packing.in_words
                                 ? ceil_div<std::int64_t>(rows, kWord / kind.packing.bits)
                                 : ceil_div(rows * kind.packing.bits, kWord);
  const std::array needed = {words, across};
  if (tensors.dtype(*parts.zeros) != DType::I32 ||
      !std::ranges::equal(tensors.shape(*parts.zeros), needed)) {
    return cannot_decode("its weight_zero_point is {} {}, but packed along the rows it is I32 {}",
                         name(tensors.dtype(*parts.zeros)), shape_text(tensors.shape(*parts.zeros)),
                         shape_text(needed));
  }
  kind.zeros = BlockScale::Zeros::Packed;
  return {};
}

Result<void> add_groups(const HeldTensors& tensors, const PackedParts& parts, BlockScale& kind) {
  // It is also absent where actorder is "group": since 0.19 columns are stored in their order.
  if (!parts.groups) return {};
  const std::array needed = {kind.columns - kind.padding};
  if (tensors.dtype(*parts.groups) != DType::I32 ||
      !std::ranges::equal(tensors.shape(*parts.groups), needed)) {
    return cannot_decode("its weight_g_idx is {} {}, not I32 {}",
                         name(tensors.dtype(*parts.groups)),
                         shape_text(tensors.shape(*parts.groups)), shape_text(needed));
  }
  kind.groups = true;
  return {};
}

Result<QuantizedWeight> read_pack_quantized(const HeldTensors& tensors, TensorId codes) {
  const std::string_view module = module_of(tensors.name(codes));
  if (tensors.find(module, ".scale_packed") || tensors.find(module, ".meta")) {
    return cannot_decode("packed as marlin-24, which has no reference");
  }
  const PackedParts parts(tensors, codes);
  if (!parts.scale) return cannot_decode("without its weight_scale");
  const auto packed = tensors.shape(codes);
  if (packed.size() != 2 || packed[0] == 0 || packed[1] == 0 || packed[1] > kMaxColumns / kWord) {
    return cannot_decode("shape {} is not of 2 dimensions", shape_text(packed));
  }
  if (!parts.arguments.type.empty() && parts.arguments.type != "int") {
    return cannot_decode("packed in I32, but config.json says type {}", parts.arguments.type);
  }
  CKFS_TRY(const std::int64_t columns, row_length(tensors, parts, packed[0]));
  std::optional<std::int64_t> bits = parts.arguments.num_bits;
  if (!bits) {
    CKFS_TRY(bits, only_width(tensors, columns, packed[1]));
  }
  if (*bits < 1 || *bits > kMaxBits) {
    return cannot_decode("{} bits (limit 1 to {})", *bits, kMaxBits);
  }

  BlockScale kind{.codes = DType::I32, .scale = tensors.dtype(*parts.scale)};
  CKFS_TRY(kind.packing, packing_of(tensors, columns, packed[1], static_cast<int>(*bits)));
  if (kind.scale != DType::BF16 && kind.scale != DType::F16 && kind.scale != DType::F32) {
    return cannot_decode("its scale is {} (known: F32, BF16, F16)", name(kind.scale));
  }
  kind.result = kind.scale;
  const std::array logical = {packed[0], columns};
  const auto block = block_of_scales(logical, tensors.shape(*parts.scale));
  if (!block) {
    return cannot_decode("its scale has shape {}, which fits no groups of a weight of shape {}",
                         shape_text(tensors.shape(*parts.scale)), shape_text(logical));
  }
  // Rows as long as their words, where those are whole codes; extra columns are not shown.
  const std::int64_t in_words = kWord / *bits;
  kind.rows = packed[0];
  kind.columns = kind.packing.in_words            ? packed[1] * in_words
                 : packed[1] * kWord % *bits == 0 ? packed[1] * kWord / *bits
                                                  : columns;
  kind.padding = kind.columns - columns;
  kind.block_rows = (*block)[0];
  kind.block_columns = (*block)[1];
  const bool odd = kWord % *bits != 0 && !kind.packing.in_words;
  if (odd && kind.columns % 8 != 0 && kind.columns > kMaxUnit) {
    return cannot_decode("rows of {} codes of {} bits end within a byte (limit {})", kind.columns,
                         *bits, kMaxUnit);
  }
  CKFS_TRY_VOID(add_zeros(tensors, parts, kind));
  CKFS_TRY_VOID(add_groups(tensors, parts, kind));

  QuantizedWeight weight;
  weight.name = std::string(module) + ".weight";
  weight.shape.assign(logical.begin(), logical.end());
  const auto numel = checked_mul(kind.rows, kind.columns);
  if (!numel) return cannot_decode("shape {} is too large", shape_text(logical));
  weight.numel = *numel;
  weight.companions = {*parts.scale};
  if (kind.zeros != BlockScale::Zeros::None) weight.companions.push_back(*parts.zeros);
  if (kind.groups) weight.companions.push_back(*parts.groups);
  if (parts.shape) weight.left_out.push_back(*parts.shape);
  if (kind.padding > 0) {
    StorageBox box;
    box.begin = {0, 0};
    box.count = weight.shape;
    box.stride = {kind.columns, 1};
    weight.boxes.push_back(std::move(box));
  }
  weight.kind = block_scale_kind(tensors, kind);
  return weight;
}

}  // namespace

const Scheme kPackQuantized{
    .name = "pack-quantized",
    .methods = {"compressed-tensors"},
    .formats = {"pack-quantized"},
    .auxiliaries = {".weight_shape", ".weight_g_idx"},
    .recognizes = is_packed,
    .wants = wants,
    .read = read_pack_quantized,
};

}  // namespace ckfs
