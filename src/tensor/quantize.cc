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

/// Powers of two: half a step of E2M1 is added to the largest value's bits, its exponent is kept,
/// and that of the code's largest value is taken off.
template <DType kFrom, GroupForm kForm>
GroupScale mx_scale(float top) {
  using Format = bits_of::Format<kFrom>;
  constexpr int kMantissa = quantize::kMantissaBits<kFrom>;
  // A NaN and half a step are beyond infinity, which is full; in F32 they wrap.
  int byte = 0;
  if (std::isnan(top)) {
    byte = kFrom == DType::F32 ? 0 : 255;
  } else {
    const std::uint64_t bits = Format::narrow(std::bit_cast<std::uint32_t>(top));
    const auto exponent =
        static_cast<int>((bits + (std::uint64_t{1} << (kMantissa - 2))) >> kMantissa);
    byte =
        exponent == 0 ? 0
        : exponent >= quantize::kFullExponent<kFrom>
            ? 255
            : std::clamp(127 + exponent - quantize::kBias<kFrom> - quantize::kCodeExponent<kForm>,
                         0, 255);
  }
  // 2^(byte - 127): the number whose exponent has these bits, except the ends.
  const auto power = std::bit_cast<float>(static_cast<std::uint32_t>(byte) << 23);
  float scale = quantize::round_to<kFrom>(byte == 0 ? 0x1p-127F : power);
  if (scale == 0) scale = 1;
  return {scale, std::isinf(scale) ? 127 : std::bit_cast<std::uint32_t>(scale) >> 23};
}

template <DType kFrom>
GroupScale int4_scale(float top) {
  float scale = quantize::round_to<kFrom>(top / 7.5F);
  if (scale == 0) scale = quantize::kEps<kFrom>;
  return {scale, bits_of::Format<kFrom>::narrow(std::bit_cast<std::uint32_t>(scale))};
}

template <DType kFrom>
GroupScale nvfp4_scale(float top, float global) {
  std::uint8_t code = quantize::e4m3(global * quantize::round_to<kFrom>(top / 6.0F));
  if ((code & 0x7f) == 0) code = quantize::e4m3(0.125F);
  const float value = std::bit_cast<float>(bits_of::Format<DType::F8E4M3>::widen(code));
  return {value / global, code};
}

GroupScale nf4_scale(float top) {
  return {1.0F / (top < 1e-38F ? 1e-38F : top), std::bit_cast<std::uint32_t>(top)};
}

template <DType kFrom, GroupForm kForm>
GroupScale scale_of(float top, float global) {
  switch (kForm) {
    case GroupForm::Int4:
      return int4_scale<kFrom>(top);
    case GroupForm::Mxfp4:
    case GroupForm::Mxfp8:
      return mx_scale<kFrom, kForm>(top);
    case GroupForm::Nvfp4:
      return nvfp4_scale<kFrom>(top, global);
    case GroupForm::Nf4:
      return nf4_scale(top);
  }
}

template <DType kFrom, GroupForm kForm>
void quantize_groups(const std::byte* in, const Groups& groups, std::byte* codes,
                     std::byte* scales) {
  using Form = quantize::FormOf<kForm>;
  for (std::size_t group = 0; group < groups.count; ++group) {
    float top = 0;
    maxima_of<kFrom>(in, groups.values, &top, groups.values);
    const GroupScale scale = scale_of<kFrom, kForm>(top, groups.global);
    if (scales != nullptr) {
      constexpr std::size_t kStored = quantize::kScaleBytes<kForm, kFrom>;
      std::memcpy(scales + group * kStored, &scale.stored, kStored);
    }
    for (std::size_t i = 0; codes != nullptr && i < groups.values; ++i) {
      const std::byte code{
          quantize::code_of<Form::kKind>(quantize::before_code<kFrom, Form::kArithmetic>(
              quantize::load<kFrom>(in + i * quantize::kBytes<kFrom>), scale.used, 0))};
      if (quantize::kCodesInByte<kForm> == 1) {
        *codes++ = code;
      } else if (i % 2 == 0) {
        *codes = kForm == GroupForm::Nf4 ? code << 4 : code;
      } else {
        *codes++ |= kForm == GroupForm::Nf4 ? code : code << 4;
      }
    }
    in += groups.values * quantize::kBytes<kFrom>;
  }
}

}  // namespace

GroupScale group_scale(GroupForm form, DType from, float top, float global) {
  using Scale = GroupScale (*)(float, float);
  const Scale scale = quantize::select_groups(
      form, from, []<DType kFrom, GroupForm kForm>() { return Scale{scale_of<kFrom, kForm>}; });
  return scale == nullptr ? GroupScale{} : scale(top, global);
}

QuantizeGroupsKernel find_quantize_groups(GroupForm form, DType from, KernelSet set) {
#ifdef __x86_64__
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx512) {
    return avx512::quantize_groups(form, from);
  }
  if (set == KernelSet::Fast && vectors() >= Vectors::Avx2) {
    return avx2::quantize_groups(form, from);
  }
#endif
  if (set == KernelSet::Fast) return lanes::quantize_groups(form, from);
  return quantize::select_groups(form, from, []<DType kFrom, GroupForm kForm>() {
    return QuantizeGroupsKernel{quantize_groups<kFrom, kForm>};
  });
}

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
