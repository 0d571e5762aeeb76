// miles, convert_mxfp4_to_fp8.py (radixark/miles#2717): the exponent of a block is its largest
// scale less 6, so that the largest FP4 value, 6, becomes 384. Values far below that lose bits, and
// the tool rounds them silently; here they are an error, because the view promises that no
// value changes.
#include "encoding/fp4_as_fp8_quantizer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <limits>

#include "base/checked.h"
#include "tensor/float_bits.h"
#include "tensor/quantize.h"
#include "tensor/quantize_elements.h"

namespace ckfs {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::int64_t kScaled = 32;  // values of a scale
constexpr int kHeadroom = 6;          // binary places from 6, the largest FP4, to 384

class Fp4AsFp8Quantizer final : public Quantizer {
 public:
  explicit Fp4AsFp8Quantizer(std::span<const std::int64_t> shape)
      : rows_(shape[0]), columns_(shape[1]) {
    const auto elements = static_cast<std::uint64_t>(rows_ * columns_);
    outputs_ = {{"weight", DType::F8E4M3, {rows_, columns_}, elements},
                {"scale",
                 DType::F32,
                 {rows_ / kBlock, columns_ / kBlock},
                 elements / static_cast<std::uint64_t>(kBlock * kBlock) * 4}};
  }

  DType from() const override { return DType::BF16; }
  std::int64_t numel() const override { return rows_ * columns_; }
  std::span<const QuantizedOutput> outputs() const override { return outputs_; }
  Unit unit(std::size_t output) const override {
    const std::int64_t band = kBlock * columns_;
    if (output == 0) return {band, static_cast<std::uint64_t>(band)};
    return {band, static_cast<std::uint64_t>(columns_ / kBlock) * 4};
  }
  std::int64_t values_each() const override { return kScaled; }
  DType beside() const override { return DType::F8E8M0; }
  Exactness exactness() const override { return Exactness::Exact; }
  std::string text() const override { return "F8_E4M3 with F32 scales that are powers of two"; }

  Result<void> quantize(std::size_t output, ElementRange elements, const Values& values,
                        std::span<std::byte> out) const override {
    const std::int64_t band = kBlock * columns_;
    const std::byte* in = values.values;
    const std::byte* scales = values.beside;
    std::byte* to = out.data();
    for (std::int64_t at = elements.first; at < elements.end(); at += band) {
      for (std::int64_t column = 0; column < columns_ / kBlock; ++column) {
        CKFS_TRY(const int exponent, exponent_of(scales, at / band, column));
        if (output == 0) {
          CKFS_TRY_VOID(codes(in, exponent, at / band, column, to));
        } else {
          const std::uint32_t bits = static_cast<std::uint32_t>(exponent) << 23;
          std::memcpy(to + column * 4, &bits, sizeof(bits));
        }
      }
      in += band * 2;
      scales += band / kScaled;
      to += unit(output).bytes;
    }
    return {};
  }

 private:
  /// The exponent of block `column` of the band whose scales are given, as F32 has it.
  Result<int> exponent_of(const std::byte* scales, std::int64_t row, std::int64_t column) const {
    int largest = 0;
    for (std::int64_t r = 0; r < kBlock; ++r) {
      for (std::int64_t k = 0; k < kBlock / kScaled; ++k) {
        largest = std::max(largest,
                           std::to_integer<int>(
                               scales[r * (columns_ / kScaled) + column * (kBlock / kScaled) + k]));
      }
    }
    if (largest == 255) {
      return fail(ErrorCode::Unsupported, "block {}, {}: a scale is NaN", row, column);
    }
    if (largest - kHeadroom < 1) {
      return fail(ErrorCode::Unsupported, "block {}, {}: its largest scale, 2^{}, is below 2^{}",
                  row, column, largest - 127, kHeadroom + 1 - 127);
    }
    return largest - kHeadroom;
  }

  Result<void> codes(const std::byte* band, int exponent, std::int64_t row, std::int64_t column,
                     std::byte* out) const {
    for (std::int64_t r = 0; r < kBlock; ++r) {
      for (std::int64_t c = 0; c < kBlock; ++c) {
        const std::int64_t at = r * columns_ + column * kBlock + c;
        const float value = quantize::load<DType::BF16>(band + at * 2);
        const double wanted = std::ldexp(static_cast<double>(value), 127 - exponent);
        const std::uint8_t code = e4m3_code(static_cast<float>(wanted));
        const float shown = std::bit_cast<float>(bits_of::Format<DType::F8E4M3>::widen(code));
        if (static_cast<double>(shown) != wanted) {
          return fail(ErrorCode::Unsupported,
                      "block {}, {}: the value {} is not a multiple of 2^{}, as F8_E4M3 with the "
                      "block's scale would have it (fp8-safetensors without exact=1 rounds)",
                      row, column, value, exponent - 127 - 9);
        }
        out[at] = std::byte{code};
      }
    }
    return {};
  }

  const std::int64_t rows_, columns_;
  std::vector<QuantizedOutput> outputs_;
};

}  // namespace

Result<std::shared_ptr<const Quantizer>> make_fp4_as_fp8(DType from,
                                                         std::span<const std::int64_t> shape) {
  if (from != DType::BF16) {
    return fail(ErrorCode::Unsupported, "{}: FP4 values are wanted in BF16", name(from));
  }
  if (shape.size() != 2 || shape[0] % kBlock != 0 || shape[1] % kBlock != 0) {
    return fail(ErrorCode::Unsupported, "shape [{}]: no multiple of 128 x 128",
                fmt::join(shape, ", "));
  }
  const std::optional<std::int64_t> numel = checked_numel(shape);
  if (!numel || *numel == 0 || *numel > std::numeric_limits<std::int64_t>::max() / 64) {
    return fail(ErrorCode::Unsupported, "shape [{}]: too large, or without elements",
                fmt::join(shape, ", "));
  }
  return std::make_shared<const Fp4AsFp8Quantizer>(shape);
}

}  // namespace ckfs
