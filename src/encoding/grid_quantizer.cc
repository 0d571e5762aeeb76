// All forms but one are a grid: rectangles of values that share a scale. They differ in how a scale
// follows from a rectangle's largest value, in what is done to a value before it is a code, and in
// how codes are packed: a row of one table each.
//
// Rectangles of one row that divide the rows are runs of the tensor's values, so the matrix is
// computed as one long row. Others are computed in bands: all rows of a rectangle, over the whole
// width.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <limits>
#include <numeric>
#include <optional>

#include "base/checked.h"
#include "base/rounding.h"
#include "encoding/fp4_as_fp8_quantizer.h"
#include "encoding/quantizer.h"
#include "tensor/float_bits.h"
#include "tensor/quantize.h"

namespace ckfs {
namespace {

constexpr std::size_t kMostInStrip = 4096;  // values, or scales, in buffers on the stack

/// What is known of a rectangle when its scale is made.
struct Rectangle {
  DType from = DType::F32;
  float top = 0;            // the largest magnitude
  float low = 0, high = 0;  // of asymmetric forms: the extremes, 0 among them
  bool whole = true;        // has all its values; the last may have fewer
  float maximum = 0;        // of the set of tensors
  float global = 1;         // the scale that GridRecipe::global_of makes of it
};

/// A scale: what values are divided by (or multiplied with), what is added then, and the bits that
/// are stored.
struct GridScale {
  float used = 1;
  float zero = 0;
  std::uint32_t stored = 0;
};

enum class ScaleType : std::uint8_t { None, F32, OfValues, U8, F8E4M3 };
enum class PackedAs : std::uint8_t { Bytes, LowFirst, HighFirst, Words };

/// What a form does with a rectangle.
struct GridRecipe {
  std::string_view codes;  // suffixes
  DType code_dtype;
  PackedAs packed;
  CodeKind kind;
  CodeArithmetic arithmetic;
  std::string_view scale;
  ScaleType scale_type;
  GridScale (*scale_of)(const Rectangle&);
  std::optional<GroupForm> groups = {};  // for which there are kernels
  std::string_view text;
  bool asymmetric = false;
  bool shape = false;      // has weight_shape
  bool of_tensor = false;  // one scale, of the maximum
  bool in_sets = false;    // has a global scale
  bool flat = false;       // rectangles run over rows, as bitsandbytes has them

  float global_of(DType from, float maximum) const;
};

std::uint32_t f32_bits(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

/// The bits of a value of the dtype, which holds it.
std::uint32_t bits_in(DType dtype, float value) {
  switch (dtype) {
    case DType::BF16:
      return bits_of::Format<DType::BF16>::narrow(f32_bits(value));
    case DType::F16:
      return bits_of::Format<DType::F16>::narrow(f32_bits(value));
    default:
      return f32_bits(value);
  }
}

/// The larger; a NaN is larger than all.
float larger(float a, float b) {
  return std::isnan(a) || a > b ? a : b;
}

// slime, convert_hf_to_fp8.py 624b824.

GridScale slime_scale(const Rectangle& of) {
  // The tool clamps to 1e-12 in the dtype of the weight: to 0 in F16.
  const float scale = larger(of.top, rounded_to(of.from, 1e-12F)) / 448.0F;
  return {scale, 0, f32_bits(scale)};
}

GridScale slime_tensor_scale(const Rectangle& of) {
  const float scale = larger(of.maximum, rounded_to(of.from, 1e-12F)) / 448.0F;
  return {scale, 0, f32_bits(scale)};
}

/// DeepGEMM, per_block_cast_to_fp8 54e2261: the exponent of the scale, rounded up by its bits.
GridScale ue8m0_scale(const Rectangle& of) {
  const std::uint32_t bits = f32_bits(larger(of.top, 1e-4F) / 448.0F);
  const std::uint32_t exponent =
      std::clamp(((bits >> 23) & 0xff) + ((bits & 0x7fffff) != 0 ? 1U : 0U), 1U, 254U);
  return {1.0F / std::bit_cast<float>(exponent << 23), 0, exponent << 23};
}

// llm-compressor 0.14 with compressed-tensors 0.20.1.

/// What a scale of 0 is replaced by.
float eps_of(DType dtype) {
  return dtype == DType::BF16 ? 0x1p-7F : dtype == DType::F16 ? 0x1p-10F : 0x1p-23F;
}

GridScale ct_scale(const Rectangle& of, float half_range) {
  float scale = rounded_to(of.from, of.top / half_range);
  if (scale == 0) scale = eps_of(of.from);
  return {scale, 0, bits_in(of.from, scale)};
}
GridScale ct_fp8_scale(const Rectangle& of) {
  return ct_scale(of, 448.0F);
}
GridScale ct_int8_scale(const Rectangle& of) {
  return ct_scale(of, 127.5F);
}
/// Of forms that kernels of groups know, too.
template <GroupForm kForm>
GridScale scale_of_group(const Rectangle& of) {
  const GroupScale scale = group_scale(kForm, of.from, of.top, of.global);
  return {scale.used, 0, scale.stored};
}

GridScale ct_int4_asymmetric_scale(const Rectangle& of) {
  const auto rounded = [&](float value) { return rounded_to(of.from, value); };
  float scale = rounded(rounded(of.high - of.low) / 15.0F);
  // With the scale that may still be 0: 0 / 0 is a NaN, and its zero point is 0.
  float zero = rounded(-8.0F - rounded(of.low / scale));
  zero = std::isnan(zero) ? 0.0F : std::nearbyint(std::clamp(zero, -8.0F, 7.0F));
  if (scale == 0) scale = eps_of(of.from);
  return {scale, zero + 0.0F, bits_in(of.from, scale)};
}

/// The scale of all scales of a set of tensors whose largest value is `maximum`.
float nvfp4_global(DType from, float maximum) {
  const float top = larger(maximum, from == DType::F16 ? 0x1p-14F : 0x1p-126F);
  const float scale = rounded_to(from, rounded_to(from, 1.0F / top) * 2688.0F);
  return std::isfinite(scale) ? scale : 1.0F;
}

float GridRecipe::global_of(DType from, float maximum) const {
  return in_sets ? nvfp4_global(from, maximum) : 1.0F;
}

/// bitsandbytes 0.50: whole blocks are multiplied with the reciprocal, the last is divided.
GridScale nf4_scale(const Rectangle& of) {
  if (of.whole) return scale_of_group<GroupForm::Nf4>(of);
  const float least = larger(of.top, 1e-38F);
  return {least, 0, f32_bits(least)};
}

const GridRecipe& recipe_of(QuantizedForm form) {
  using enum CodeArithmetic;
  static constexpr GridRecipe kFp8Block{.codes = "weight",
                                        .code_dtype = DType::F8E4M3,
                                        .packed = PackedAs::Bytes,
                                        .kind = CodeKind::E4M3,
                                        .arithmetic = Quotient,
                                        .scale = "weight_scale_inv",
                                        .scale_type = ScaleType::F32,
                                        .scale_of = slime_scale,
                                        .text = "F8_E4M3 with F32 scales"};
  static constexpr GridRecipe kFp8Ue8m0{.codes = "weight",
                                        .code_dtype = DType::F8E4M3,
                                        .packed = PackedAs::Bytes,
                                        .kind = CodeKind::E4M3,
                                        .arithmetic = Product,
                                        .scale = "weight_scale_inv",
                                        .scale_type = ScaleType::F32,
                                        .scale_of = ue8m0_scale,
                                        .text = "F8_E4M3 with F32 scales that are powers of two"};
  static constexpr GridRecipe kFp8Channel{.codes = "weight",
                                          .code_dtype = DType::F8E4M3,
                                          .packed = PackedAs::Bytes,
                                          .kind = CodeKind::E4M3,
                                          .arithmetic = Quotient,
                                          .scale = "weight_scale",
                                          .scale_type = ScaleType::F32,
                                          .scale_of = slime_scale,
                                          .text = "F8_E4M3 with F32 scales"};
  static constexpr GridRecipe kFp8Tensor{.codes = "weight",
                                         .code_dtype = DType::F8E4M3,
                                         .packed = PackedAs::Bytes,
                                         .kind = CodeKind::E4M3,
                                         .arithmetic = RoundedQuotient,
                                         .scale = "weight_scale",
                                         .scale_type = ScaleType::F32,
                                         .scale_of = slime_tensor_scale,
                                         .text = "F8_E4M3 with one F32 scale",
                                         .of_tensor = true};
  static constexpr GridRecipe kCtFp8{.codes = "weight",
                                     .code_dtype = DType::F8E4M3,
                                     .packed = PackedAs::Bytes,
                                     .kind = CodeKind::E4M3,
                                     .arithmetic = RoundedQuotient,
                                     .scale = "weight_scale",
                                     .scale_type = ScaleType::OfValues,
                                     .scale_of = ct_fp8_scale,
                                     .text = "F8_E4M3 with scales"};
  static constexpr GridRecipe kCtInt8{.codes = "weight",
                                      .code_dtype = DType::I8,
                                      .packed = PackedAs::Bytes,
                                      .kind = CodeKind::I8,
                                      .arithmetic = RoundedQuotient,
                                      .scale = "weight_scale",
                                      .scale_type = ScaleType::OfValues,
                                      .scale_of = ct_int8_scale,
                                      .text = "I8 with scales"};
  static constexpr GridRecipe kCtInt4{.codes = "weight_packed",
                                      .code_dtype = DType::I32,
                                      .packed = PackedAs::Words,
                                      .kind = CodeKind::I4,
                                      .arithmetic = RoundedQuotient,
                                      .scale = "weight_scale",
                                      .scale_type = ScaleType::OfValues,
                                      .scale_of = scale_of_group<GroupForm::Int4>,
                                      .groups = GroupForm::Int4,
                                      .text = "INT4 in I32 words with scales",
                                      .shape = true};
  static constexpr GridRecipe kCtInt4Asymmetric{
      .codes = "weight_packed",
      .code_dtype = DType::I32,
      .packed = PackedAs::Words,
      .kind = CodeKind::I4,
      .arithmetic = RoundedSum,
      .scale = "weight_scale",
      .scale_type = ScaleType::OfValues,
      .scale_of = ct_int4_asymmetric_scale,
      .text = "INT4 in I32 words with scales and zero points",
      .asymmetric = true,
      .shape = true};
  static constexpr GridRecipe kCtMxfp4{.codes = "weight_packed",
                                       .code_dtype = DType::U8,
                                       .packed = PackedAs::LowFirst,
                                       .kind = CodeKind::E2M1,
                                       .arithmetic = RoundedQuotient,
                                       .scale = "weight_scale",
                                       .scale_type = ScaleType::U8,
                                       .scale_of = scale_of_group<GroupForm::Mxfp4>,
                                       .groups = GroupForm::Mxfp4,
                                       .text = "MXFP4"};
  static constexpr GridRecipe kCtMxfp8{.codes = "weight",
                                       .code_dtype = DType::F8E4M3,
                                       .packed = PackedAs::Bytes,
                                       .kind = CodeKind::E4M3,
                                       .arithmetic = RoundedQuotient,
                                       .scale = "weight_scale",
                                       .scale_type = ScaleType::U8,
                                       .scale_of = scale_of_group<GroupForm::Mxfp8>,
                                       .groups = GroupForm::Mxfp8,
                                       .text = "MXFP8"};
  static constexpr GridRecipe kCtNvfp4{.codes = "weight_packed",
                                       .code_dtype = DType::U8,
                                       .packed = PackedAs::LowFirst,
                                       .kind = CodeKind::E2M1,
                                       .arithmetic = Quotient,
                                       .scale = "weight_scale",
                                       .scale_type = ScaleType::F8E4M3,
                                       .scale_of = scale_of_group<GroupForm::Nvfp4>,
                                       .groups = GroupForm::Nvfp4,
                                       .text = "NVFP4",
                                       .in_sets = true};
  static constexpr GridRecipe kNf4{.codes = "weight",
                                   .code_dtype = DType::U8,
                                   .packed = PackedAs::HighFirst,
                                   .kind = CodeKind::NF4,
                                   .arithmetic = Product,
                                   .scale = "weight.absmax",
                                   .scale_type = ScaleType::F32,
                                   .scale_of = nf4_scale,
                                   .groups = GroupForm::Nf4,
                                   .text = "nf4 with F32 scales",
                                   .flat = true};
  switch (form) {
    case QuantizedForm::Fp8Block:
      return kFp8Block;
    case QuantizedForm::Fp8Ue8m0:
      return kFp8Ue8m0;
    case QuantizedForm::Fp8Channel:
      return kFp8Channel;
    case QuantizedForm::Fp8Tensor:
      return kFp8Tensor;
    case QuantizedForm::CtFp8Channel:
    case QuantizedForm::CtFp8Block:
      return kCtFp8;
    case QuantizedForm::CtInt8Channel:
      return kCtInt8;
    case QuantizedForm::CtInt4Group:
      return kCtInt4;
    case QuantizedForm::CtInt4GroupAsymmetric:
      return kCtInt4Asymmetric;
    case QuantizedForm::CtMxfp4:
      return kCtMxfp4;
    case QuantizedForm::CtMxfp8:
      return kCtMxfp8;
    case QuantizedForm::CtNvfp4:
      return kCtNvfp4;
    case QuantizedForm::Nf4:
    case QuantizedForm::Fp4AsFp8:  // no grid
      return kNf4;
  }
  return kNf4;
}

/// Two codes a byte; without a partner the last has `filler`.
void pack(const std::byte* codes, std::size_t count, bool high_first, std::byte filler,
          std::byte* out) {
  // Eight codes at once, each the lower half of a byte of a little-endian number.
  const std::size_t eights = count / 8;
  for (std::size_t i = 0; i < eights; ++i) {
    std::uint64_t x = 0;
    std::memcpy(&x, codes + i * 8, 8);
    x = (high_first ? x << 4 | x >> 8 : x | x >> 4) & 0x00ff00ff00ff00ff;
    x = (x | x >> 8) & 0x0000ffff0000ffff;
    const auto packed = static_cast<std::uint32_t>(x | x >> 16);
    std::memcpy(out + i * 4, &packed, 4);
  }
  for (std::size_t i = eights * 8; i < count; i += 2) {
    const std::byte first = codes[i], second = i + 1 < count ? codes[i + 1] : filler;
    out[i / 2] = high_first ? first << 4 | second : second << 4 | first;
  }
}

class GridQuantizer final : public Quantizer {
 public:
  /// Requires: `shape` is that of a matrix with elements; each of `granule` is within it.
  GridQuantizer(const GridRecipe& recipe, DType from, std::span<const std::int64_t> shape,
                QuantizedGranule granule)
      : recipe_(recipe),
        from_(from),
        shape_(shape.begin(), shape.end()),
        rows_(recipe.flat ? 1 : shape[0]),
        columns_(recipe.flat ? shape[0] * shape[1] : shape[1]),
        granule_(granule),
        width_(ckfs::bytes_of(from, 1)),
        is_run_(granule.rows == 1 && (rows_ == 1 || columns_ % granule.columns == 0) &&
                (recipe.packed != PackedAs::Words || columns_ % 8 == 0)),
        in_groups_(is_run_ && recipe.groups && granule.columns % 16 == 0),
        maxima_(find_maxima(from)),
        extremes_(find_extremes(from)) {
    add_outputs();
  }

  DType from() const override { return from_; }
  std::int64_t numel() const override { return rows_ * columns_; }
  std::span<const QuantizedOutput> outputs() const override { return outputs_; }

  Unit unit(std::size_t output) const override {
    switch (kinds_[output]) {
      case OutputKind::Codes:
        return {code_unit(), packed_bytes(code_unit())};
      case OutputKind::Scales:
        if (recipe_.of_tensor) return {};
        if (is_run_) return {granule_.columns, scale_bytes()};
        return {granule_.rows * columns_, scales_in_row() * scale_bytes()};
      case OutputKind::ZeroPoints:
        // A word has the zero points of eight rows.
        return {std::min<std::int64_t>(8, rows_) * columns_, scales_in_row() * 4};
      case OutputKind::Shape:
      case OutputKind::Global:
      case OutputKind::Table:
      case OutputKind::State:
        return {};
    }
    return {};
  }

  bool needs_maximum() const override { return recipe_.of_tensor || recipe_.in_sets; }
  bool needs_maximum(std::size_t output) const override {
    return needs_maximum() && kinds_[output] <= OutputKind::Global;
  }

  Result<void> quantize(std::size_t output, ElementRange elements, const Values& given,
                        std::span<std::byte> out) const override {
    Values values = given;
    if (in_groups_ && kinds_[output] <= OutputKind::Scales) {
      const bool codes = kinds_[output] == OutputKind::Codes;
      const std::int64_t groups = elements.count / granule_.columns;
      const std::int64_t made = groups * granule_.columns;
      find_quantize_groups(*recipe_.groups, from_, values.kernels)(
          values.values,
          {static_cast<std::size_t>(granule_.columns), static_cast<std::size_t>(groups),
           recipe_.global_of(from_, values.maximum)},
          codes ? out.data() : nullptr, codes ? nullptr : out.data());
      // A last, shorter group may be left.
      elements = {elements.first + made, elements.count - made};
      values.values += static_cast<std::size_t>(made) * width_;
      out = out.subspan(codes ? packed_bytes(made)
                              : static_cast<std::size_t>(groups) * scale_bytes());
      if (elements.count == 0) return {};
    }
    switch (kinds_[output]) {
      case OutputKind::Codes:
        for_each_band(elements, values, [&](const Band& band) {
          codes(band, values, out.data());
          out = out.subspan(band_bytes(band));
        });
        break;
      case OutputKind::Scales:
        if (recipe_.of_tensor) {
          store_scale(scale_of_tensor(values), out.data());
          break;
        }
        for_each_band(elements, values, [&](const Band& band) {
          std::byte* at = out.data();
          for_each_scale(band, values, [&](std::size_t, const GridScale& scale) {
            store_scale(scale, at);
            at += scale_bytes();
          });
          out = out.subspan(static_cast<std::size_t>(at - out.data()));
        });
        break;
      case OutputKind::ZeroPoints:
        zero_points(elements, values, out);
        break;
      case OutputKind::Shape:
        std::memcpy(out.data(), shape_.data(), out.size());
        break;
      case OutputKind::Global: {
        const float global = recipe_.global_of(from_, values.maximum);
        std::memcpy(out.data(), &global, sizeof(global));
        break;
      }
      case OutputKind::Table:
        std::memcpy(out.data(), kNf4Table, sizeof(kNf4Table));
        break;
      case OutputKind::State:
        std::memcpy(out.data(), state().data(), out.size());
        break;
    }
    return {};
  }

  std::string text() const override { return std::string(recipe_.text); }

 private:
  /// Those before Shape are made of values.
  enum class OutputKind : std::uint8_t { Codes, Scales, ZeroPoints, Global, Shape, Table, State };

  /// Rows of values that lie one after another and share no scale with others.
  struct Band {
    const std::byte* values = nullptr;
    std::int64_t first = 0;  // element of the tensor
    std::size_t rows = 1;
    std::size_t columns = 0;
  };

  void add_outputs() {
    const auto add = [&](OutputKind kind, std::string_view suffix, DType dtype,
                         std::vector<std::int64_t> shape) {
      std::uint64_t bytes = ckfs::bytes_of(dtype, 1);
      for (const std::int64_t extent : shape) bytes *= static_cast<std::uint64_t>(extent);
      kinds_.push_back(kind);
      outputs_.push_back({suffix, dtype, std::move(shape), bytes});
    };
    const std::int64_t grid_rows = ceil_div(rows_, granule_.rows);
    const auto grid_columns = static_cast<std::int64_t>(scales_in_row());
    if (recipe_.flat) {
      add(OutputKind::Codes, recipe_.codes, recipe_.code_dtype,
          {ceil_div<std::int64_t>(columns_, 2), 1});
      add(OutputKind::Scales, recipe_.scale, DType::F32, {grid_columns});
      add(OutputKind::Table, "weight.quant_map", DType::F32, {16});
      add(OutputKind::State, "weight.quant_state.bitsandbytes__nf4", DType::U8,
          {static_cast<std::int64_t>(state().size())});
      return;
    }
    const std::int64_t width = recipe_.packed == PackedAs::Words
                                   ? ceil_div<std::int64_t>(columns_, 8)
                               : recipe_.packed == PackedAs::LowFirst ? columns_ / 2
                                                                      : columns_;
    add(OutputKind::Codes, recipe_.codes, recipe_.code_dtype, {rows_, width});
    if (recipe_.of_tensor) {
      add(OutputKind::Scales, recipe_.scale, scale_dtype(), {1});
    } else {
      add(OutputKind::Scales, recipe_.scale, scale_dtype(), {grid_rows, grid_columns});
    }
    if (recipe_.asymmetric) {
      add(OutputKind::ZeroPoints, "weight_zero_point", DType::I32,
          {ceil_div<std::int64_t>(rows_, 8), grid_columns});
    }
    if (recipe_.shape) add(OutputKind::Shape, "weight_shape", DType::I64, {2});
    if (recipe_.in_sets) add(OutputKind::Global, "weight_global_scale", DType::F32, {1});
  }

  /// In these very bytes: json.dumps of the tool's dictionary.
  std::string state() const {
    return fmt::format(
        R"({{"quant_type": "nf4", "blocksize": {}, "dtype": "bfloat16", "shape": [{}, {}]}})",
        granule_.columns, shape_[0], shape_[1]);
  }

  DType scale_dtype() const {
    switch (recipe_.scale_type) {
      case ScaleType::OfValues:
        return from_;
      case ScaleType::U8:
        return DType::U8;
      case ScaleType::F8E4M3:
        return DType::F8E4M3;
      default:
        return DType::F32;
    }
  }
  std::size_t scale_bytes() const { return ckfs::bytes_of(scale_dtype(), 1); }
  std::size_t scales_in_row() const {
    return static_cast<std::size_t>(ceil_div(columns_, granule_.columns));
  }
  void store_scale(const GridScale& scale, std::byte* out) const {
    std::memcpy(out, &scale.stored, scale_bytes());  // little-endian: the low bytes
  }

  /// Values whose codes have whole bytes, or words, of their own.
  std::int64_t code_unit() const {
    if (recipe_.of_tensor) return 1;
    if (!is_run_) return granule_.rows * columns_;
    const std::int64_t together = recipe_.packed == PackedAs::Bytes   ? 1
                                  : recipe_.packed == PackedAs::Words ? 8
                                                                      : 2;
    return std::lcm(granule_.columns, together);
  }
  /// Bytes for so many codes of a row, or of whole rows.
  std::uint64_t packed_bytes(std::int64_t count) const {
    switch (recipe_.packed) {
      case PackedAs::Bytes:
        return static_cast<std::uint64_t>(count);
      case PackedAs::Words:
        if (!is_run_) {
          return static_cast<std::uint64_t>(count / columns_ * ceil_div<std::int64_t>(columns_, 8) *
                                            4);
        }
        return static_cast<std::uint64_t>(ceil_div<std::int64_t>(count, 8) * 4);
      default:
        return static_cast<std::uint64_t>(ceil_div<std::int64_t>(count, 2));
    }
  }
  std::size_t band_bytes(const Band& band) const {
    return packed_bytes(static_cast<std::int64_t>(band.rows * band.columns));
  }

  template <typename Use>
  void for_each_band(ElementRange elements, const Values& values, Use use) const {
    if (is_run_ || recipe_.of_tensor) {
      use(Band{values.values, elements.first, 1, static_cast<std::size_t>(elements.count)});
      return;
    }
    for (std::int64_t at = elements.first; at < elements.end();) {
      const std::int64_t left = (elements.end() - at) / columns_;
      const std::int64_t rows = std::min(granule_.rows, left);
      use(Band{values.values + static_cast<std::size_t>(at - elements.first) * width_, at,
               static_cast<std::size_t>(rows), static_cast<std::size_t>(columns_)});
      at += rows * columns_;
    }
  }

  /// Columns of a band that are looked at together: whole rectangles, and whole words.
  std::size_t strip() const {
    const auto unit = static_cast<std::size_t>(std::lcm<std::int64_t>(granule_.columns, 8));
    return std::max<std::size_t>(1, kMostInStrip / unit) * unit;
  }

  /// The scales of the rectangles of a strip.
  struct Strip {
    std::array<float, kMostInStrip> tops, lows, highs;
  };

  /// Calls use(number of the rectangle, scale) for those of a band, from left to right.
  template <typename Use>
  void for_each_scale(const Band& band, const Values& values, Use use) const {
    for (std::size_t begin = 0; begin < band.columns; begin += strip()) {
      const std::size_t count = std::min(strip(), band.columns - begin);
      strip_scales(band, values, begin, count, use);
    }
  }

  template <typename Use>
  void strip_scales(const Band& band, const Values& values, std::size_t begin, std::size_t count,
                    Use use) const {
    const auto group = static_cast<std::size_t>(granule_.columns);
    const std::size_t number = ceil_div(count, group);
    Strip strip;
    CKFS_CHECK(number <= kMostInStrip);
    std::fill_n(strip.tops.begin(), number, 0.0F);
    if (recipe_.asymmetric) {
      std::fill_n(strip.lows.begin(), number, 0.0F);
      std::fill_n(strip.highs.begin(), number, 0.0F);
    }
    for (std::size_t row = 0; row < band.rows; ++row) {
      const std::byte* in = band.values + (row * band.columns + begin) * width_;
      if (recipe_.asymmetric) {
        extremes_(in, group, strip.lows.data(), strip.highs.data(), count);
      } else {
        find_maxima(from_, values.kernels)(in, group, strip.tops.data(), count);
      }
    }
    const float global = recipe_.global_of(from_, values.maximum);
    for (std::size_t i = 0; i < number; ++i) {
      const bool whole = i + 1 < number || count % group == 0;
      use(begin / group + i, recipe_.scale_of({.from = from_,
                                               .top = strip.tops[i],
                                               .low = recipe_.asymmetric ? strip.lows[i] : 0,
                                               .high = recipe_.asymmetric ? strip.highs[i] : 0,
                                               .whole = whole,
                                               .maximum = values.maximum,
                                               .global = global}));
    }
  }

  GridScale scale_of_tensor(const Values& values) const {
    return recipe_.scale_of({.from = from_, .maximum = values.maximum});
  }

  void codes(const Band& band, const Values& values, std::byte* out) const {
    const QuantizeKernel kernel =
        find_quantize(from_, recipe_.kind, recipe_.arithmetic, values.kernels);
    const auto group = static_cast<std::size_t>(granule_.columns);
    if (recipe_.of_tensor) {
      const float scale = scale_of_tensor(values).used;
      kernel(band.values, {&scale, nullptr, 0, band.columns}, out, band.columns);
      return;
    }
    std::array<float, kMostInStrip> used, zeros;
    const std::size_t row_bytes = band_bytes(band) / band.rows;
    for (std::size_t begin = 0; begin < band.columns; begin += strip()) {
      const std::size_t count = std::min(strip(), band.columns - begin);
      const std::size_t first = begin / group;
      bool last_is_short = false;
      strip_scales(band, values, begin, count, [&](std::size_t i, const GridScale& scale) {
        used[i - first] = scale.used;
        zeros[i - first] = scale.zero;
      });
      last_is_short = recipe_.flat && count % group != 0;
      for (std::size_t row = 0; row < band.rows; ++row) {
        const std::byte* in = band.values + (row * band.columns + begin) * width_;
        std::byte* to = out + row * row_bytes;
        const std::size_t whole = last_is_short ? count / group * group : count;
        row_codes(kernel, in, {used.data(), zeros.data(), 0, group}, begin, whole, band.columns,
                  to);
        if (last_is_short) {
          const QuantizeKernel divide =
              find_quantize(from_, recipe_.kind, CodeArithmetic::Quotient, values.kernels);
          row_codes(divide, in + whole * width_, {&used[whole / group], nullptr, 0, group},
                    begin + whole, count - whole, band.columns, to);
        }
      }
    }
  }

  /// The codes of columns [begin, begin + count) of a row of `columns` whose packed bytes are at
  /// `row`.
  void row_codes(QuantizeKernel kernel, const std::byte* in, GroupScales scales, std::size_t begin,
                 std::size_t count, std::size_t columns, std::byte* row) const {
    if (recipe_.packed == PackedAs::Bytes) {
      kernel(in, scales, row + begin, count);
      return;
    }
    std::array<std::byte, kMostInStrip> codes;
    for (std::size_t at = 0; at < count; at += kMostInStrip) {
      const std::size_t here = std::min(kMostInStrip, count - at);
      scales.first = at;
      kernel(in + at * width_, scales, codes.data(), here);
      std::byte* const to = row + (begin + at) / 2;
      const bool high_first = recipe_.packed == PackedAs::HighFirst;
      // bitsandbytes fills an odd end with the code of zero.
      pack(codes.data(), here, high_first,
           std::byte{high_first ? std::uint8_t{7} : std::uint8_t{0}}, to);
      if (recipe_.packed == PackedAs::Words && begin + at + here == columns) {
        const std::size_t written = ceil_div<std::size_t>(here, 2);
        const std::size_t wanted = ceil_div<std::size_t>(here, 8) * 4;
        std::memset(to + written, 0, wanted - written);
      }
    }
  }

  /// Words of eight rows' zero points each, the first row in the lowest bits.
  void zero_points(ElementRange elements, const Values& values, std::span<std::byte> out) const {
    const std::size_t number = scales_in_row();
    const auto columns = static_cast<std::size_t>(columns_);
    const auto rows = static_cast<std::size_t>(elements.count / columns_);
    std::memset(out.data(), 0, out.size());
    for (std::size_t row = 0; row < rows; ++row) {
      const Band band{values.values + row * columns * width_, 0, 1, columns};
      std::byte* const words = out.data() + row / 8 * number * 4;
      for_each_scale(band, values, [&](std::size_t i, const GridScale& scale) {
        std::uint32_t word = 0;
        std::memcpy(&word, words + i * 4, sizeof(word));
        word |= static_cast<std::uint32_t>(static_cast<int>(scale.zero) + 8) << (row % 8 * 4);
        std::memcpy(words + i * 4, &word, sizeof(word));
      });
    }
  }

  const GridRecipe& recipe_;
  const DType from_;
  const std::vector<std::int64_t> shape_;
  const std::int64_t rows_, columns_;
  const QuantizedGranule granule_;
  const std::size_t width_;
  const bool is_run_;     // the values are one row, for all that matters
  const bool in_groups_;  // which kernels know
  const MaximaKernel maxima_;
  const ExtremesKernel extremes_;
  std::vector<OutputKind> kinds_;
  std::vector<QuantizedOutput> outputs_;
};

/// The columns that a rectangle of the form must divide; 0: it need not.
std::int64_t divides(const GridRecipe& recipe, QuantizedForm form, QuantizedGranule granule) {
  switch (form) {
    case QuantizedForm::CtInt4Group:
    case QuantizedForm::CtInt4GroupAsymmetric:
    case QuantizedForm::CtMxfp4:
    case QuantizedForm::CtMxfp8:
    case QuantizedForm::CtNvfp4:
      return granule.columns;
    default:
      return recipe.packed == PackedAs::LowFirst ? 2 : 0;
  }
}

}  // namespace

Result<std::shared_ptr<const Quantizer>> make_quantizer(QuantizedForm form, DType from,
                                                        std::span<const std::int64_t> shape,
                                                        QuantizedGranule granule) {
  CKFS_CHECK(granule.rows > 0 && granule.columns > 0);
  if (form == QuantizedForm::Fp4AsFp8) return make_fp4_as_fp8(from, shape);
  if (from != DType::BF16 && from != DType::F16 && from != DType::F32) {
    return fail(ErrorCode::Unsupported, "{}: only BF16, F16 and F32 are quantized", name(from));
  }
  if (shape.size() != 2) {
    return fail(ErrorCode::Unsupported,
                "shape [{}]: {} dimensions, and only matrices are quantized",
                fmt::join(shape, ", "), shape.size());
  }
  const std::optional<std::int64_t> numel = checked_numel(shape);
  // Codes and their unit must fit, too; nothing that a file holds comes near.
  if (!numel || *numel > std::numeric_limits<std::int64_t>::max() / 64) {
    return fail(ErrorCode::Unsupported, "shape [{}]: too large", fmt::join(shape, ", "));
  }
  if (*numel == 0) {
    return fail(ErrorCode::Unsupported, "shape [{}]: no elements", fmt::join(shape, ", "));
  }
  const GridRecipe& recipe = recipe_of(form);
  const std::int64_t divisor = divides(recipe, form, granule);
  if (divisor != 0 && shape[1] % divisor != 0) {
    return fail(ErrorCode::Unsupported, "shape [{}]: groups of {} do not divide {} columns",
                fmt::join(shape, ", "), divisor, shape[1]);
  }
  if (!recipe.flat) {
    granule.rows = std::min(granule.rows, shape[0]);
    granule.columns = std::min(granule.columns, shape[1]);
  }
  return std::make_shared<const GridQuantizer>(recipe, from, shape, granule);
}

}  // namespace ckfs
