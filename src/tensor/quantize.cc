// The plain kernels that make codes, and their look-up.
#include "tensor/quantize.h"

#include "tensor/kernel_sets.h"
#include "tensor/quantize_elements.h"
#include "tensor/select.h"

namespace ckfs {
namespace {

template <DType kFrom, CodeKind kKind, CodeArithmetic kArithmetic>
void quantize_elements(const std::byte* in, const GroupScales& scales, std::byte* out,
                       std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t group = (scales.first + i) / scales.group;
    const float zero = kArithmetic == CodeArithmetic::RoundedSum ? scales.zeros[group] : 0.0F;
    const float value = quantize::before_code<kFrom, kArithmetic>(
        quantize::load<kFrom>(in + i * quantize::kBytes<kFrom>), scales.scales[group], zero);
    out[i] = std::byte{quantize::code_of<kKind>(value)};
  }
}

template <DType kFrom>
void maxima_of(const std::byte* in, std::size_t group, float* maxima, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = std::fabs(quantize::load<kFrom>(in + i * quantize::kBytes<kFrom>));
    float& most = maxima[i / group];
    if (std::isnan(value) || value > most) most = value;
  }
}

template <DType kFrom>
void extremes_of(const std::byte* in, std::size_t group, float* lows, float* highs,
                 std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float value = quantize::load<kFrom>(in + i * quantize::kBytes<kFrom>);
    float& low = lows[i / group];
    float& high = highs[i / group];
    if (std::isnan(value) || value < low) low = value;
    if (std::isnan(value) || value > high) high = value;
  }
}

}  // namespace

QuantizeKernel find_quantize(DType from, CodeKind kind, CodeArithmetic arithmetic, KernelSet set) {
#ifdef __x86_64__
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx512) {
    return avx512::quantize(from, kind, arithmetic);
  }
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx2) {
    return avx2::quantize(from, kind, arithmetic);
  }
#endif
  if (set == KernelSet::Fast) return lanes::quantize(from, kind, arithmetic);
  return quantize::select_quantize(
      from, kind, arithmetic, []<DType kFrom, CodeKind kKind, CodeArithmetic kArithmetic>() {
        return QuantizeKernel{quantize_elements<kFrom, kKind, kArithmetic>};
      });
}

MaximaKernel find_maxima(DType from, KernelSet set) {
#ifdef __x86_64__
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx512) return avx512::maxima(from);
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx2) return avx2::maxima(from);
#endif
  if (set == KernelSet::Fast) return lanes::maxima(from);
  return select<DType::BF16, DType::F16, DType::F32>(
      from, []<DType kFrom>() { return MaximaKernel{maxima_of<kFrom>}; });
}

ExtremesKernel find_extremes(DType from) {
  return select<DType::BF16, DType::F16, DType::F32>(
      from, []<DType kFrom>() { return ExtremesKernel{extremes_of<kFrom>}; });
}

float rounded_to(DType dtype, float value) {
  switch (dtype) {
    case DType::BF16:
      return quantize::round_to<DType::BF16>(value);
    case DType::F16:
      return quantize::round_to<DType::F16>(value);
    default:
      return value;
  }
}

std::uint8_t e4m3_code(float value) {
  return quantize::e4m3(value);
}

}  // namespace ckfs
