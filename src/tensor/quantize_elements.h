// One element at a time, as the definitions of tensor/quantize.h read; for both kernel sets.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tensor/float_bits.h"
#include "tensor/quantize.h"
#include "tensor/select.h"

namespace ckfs::quantize {

template <DType kFrom>
inline constexpr std::size_t kBytes = sizeof(typename bits_of::Format<kFrom>::Code);

template <DType kFrom>
float load(const std::byte* in) {
  typename bits_of::Format<kFrom>::Code code;
  std::memcpy(&code, in, sizeof(code));
  return std::bit_cast<float>(bits_of::Format<kFrom>::widen(code));
}

template <DType kTo>
float round_to(float value) {
  const auto code = bits_of::Format<kTo>::narrow(std::bit_cast<std::uint32_t>(value));
  return std::bit_cast<float>(bits_of::Format<kTo>::widen(code));
}

/// NaN stays.
inline float clamp(float value, float low, float high) {
  return value < low ? low : value > high ? high : value;
}

inline std::uint8_t e4m3(float value) {
  if (std::isnan(value)) return 0x7f;
  const float magnitude = std::min(std::fabs(value), 448.0F);
  // Codes of one exponent are steps of 2^(exponent - 3); below 2^-6 the steps are those of 2^-6.
  const int exponent = magnitude < 0x1p-6F ? -6 : std::ilogb(magnitude);
  const float steps = std::nearbyint(std::ldexp(magnitude, 3 - exponent));
  // 8 to 16 steps, or 0 to 8 of the lowest: 16 is the next exponent's first code.
  const int code = (exponent + 6) * 8 + static_cast<int>(steps);
  return static_cast<std::uint8_t>(code | (std::signbit(value) ? 0x80 : 0));
}

inline int whole(float value, float low, float high) {
  if (std::isnan(value)) return 0;
  return static_cast<int>(std::nearbyint(clamp(value, low, high)));
}

inline std::uint8_t e2m1(float value) {
  // The bounds between neighbours, and whether the bound itself goes up (to the even code).
  struct Bound {
    float at;
    bool up;
  };
  constexpr std::array<Bound, 7> kBounds{{{0.25F, false},
                                          {0.75F, true},
                                          {1.25F, false},
                                          {1.75F, true},
                                          {2.5F, false},
                                          {3.5F, true},
                                          {5.0F, false}}};
  const float magnitude = std::fabs(value);
  int code = 0;
  for (const Bound& bound : kBounds) {
    code += magnitude > bound.at || (bound.up && magnitude == bound.at) ? 1 : 0;
  }
  return static_cast<std::uint8_t>(code | (value < 0 ? 8 : 0));
}

inline std::uint8_t nf4(float value) {
  int code = 0;
  for (int i = 0; i < 15; ++i) {
    code += value > (kNf4Table[i] + kNf4Table[i + 1]) / 2 ? 1 : 0;
  }
  return static_cast<std::uint8_t>(code);
}

template <CodeKind kKind>
std::uint8_t code_of(float value) {
  switch (kKind) {
    case CodeKind::E4M3:
      return e4m3(value);
    case CodeKind::I8:
      return static_cast<std::uint8_t>(whole(value, -128, 127));
    case CodeKind::I4:
      return static_cast<std::uint8_t>(whole(value, -8, 7) + 8);
    case CodeKind::E2M1:
      return e2m1(value);
    case CodeKind::NF4:
      return nf4(value);
  }
}

template <DType kFrom, CodeArithmetic kArithmetic>
float before_code(float value, float scale, float zero) {
  switch (kArithmetic) {
    case CodeArithmetic::Product:
      return value * scale;
    case CodeArithmetic::Quotient:
      return value / scale;
    case CodeArithmetic::RoundedQuotient:
      return round_to<kFrom>(value / scale);
    case CodeArithmetic::RoundedSum:
      return round_to<kFrom>(round_to<kFrom>(value / scale) + zero);
  }
}

template <CodeKind kKindOfCodes, CodeArithmetic kHow>
struct MadeBy {
  static constexpr CodeKind kKind = kKindOfCodes;
  static constexpr CodeArithmetic kArithmetic = kHow;
};

/// How the codes of a form are made.
template <GroupForm kForm>
struct FormOf;
template <>
struct FormOf<GroupForm::Int4> : MadeBy<CodeKind::I4, CodeArithmetic::RoundedQuotient> {};
template <>
struct FormOf<GroupForm::Mxfp4> : MadeBy<CodeKind::E2M1, CodeArithmetic::RoundedQuotient> {};
template <>
struct FormOf<GroupForm::Mxfp8> : MadeBy<CodeKind::E4M3, CodeArithmetic::RoundedQuotient> {};
template <>
struct FormOf<GroupForm::Nvfp4> : MadeBy<CodeKind::E2M1, CodeArithmetic::Quotient> {};
template <>
struct FormOf<GroupForm::Nf4> : MadeBy<CodeKind::NF4, CodeArithmetic::Product> {};

/// Bytes of a stored scale.
template <GroupForm kForm, DType kFrom>
inline constexpr std::size_t kScaleBytes = kForm == GroupForm::Int4  ? kBytes<kFrom>
                                           : kForm == GroupForm::Nf4 ? 4
                                                                     : 1;
/// Codes of a byte.
template <GroupForm kForm>
inline constexpr std::size_t kCodesInByte = kForm == GroupForm::Mxfp8 ? 1 : 2;

/// What a scale of 0 is replaced by.
template <DType kFrom>
inline constexpr float kEps = kFrom == DType::BF16  ? 0x1p-7F
                              : kFrom == DType::F16 ? 0x1p-10F
                                                    : 0x1p-23F;
/// The bits of the mantissa, the bias of the exponent and the exponent of infinity.
template <DType kFrom>
inline constexpr int kMantissaBits = kFrom == DType::BF16  ? 7
                                     : kFrom == DType::F16 ? 10
                                                           : 23;
template <DType kFrom>
inline constexpr int kBias = kFrom == DType::F16 ? 15 : 127;
template <DType kFrom>
inline constexpr int kFullExponent = kFrom == DType::F16 ? 31 : 255;
/// The exponent of the largest code.
template <GroupForm kForm>
inline constexpr int kCodeExponent = kForm == GroupForm::Mxfp4 ? 2 : 8;

/// `use.operator()<kFrom, kForm>()`; else nullptr.
template <typename Use>
auto select_groups(GroupForm form, DType from, Use use) {
  const auto with = [&]<GroupForm kForm>() {
    return select<DType::BF16, DType::F16, DType::F32>(
        from, [&]<DType kFrom>() { return use.template operator()<kFrom, kForm>(); });
  };
  switch (form) {
    case GroupForm::Int4:
      return with.template operator()<GroupForm::Int4>();
    case GroupForm::Mxfp4:
      return with.template operator()<GroupForm::Mxfp4>();
    case GroupForm::Mxfp8:
      return with.template operator()<GroupForm::Mxfp8>();
    case GroupForm::Nvfp4:
      return with.template operator()<GroupForm::Nvfp4>();
    default:
      return with.template operator()<GroupForm::Nf4>();
  }
}

/// `use.operator()<kFrom, kKind, kArithmetic>()` for what quantizers have; else nullptr.
template <typename Use>
QuantizeKernel select_quantize(DType from, CodeKind kind, CodeArithmetic arithmetic, Use use) {
  const auto with = [&]<CodeKind kKind, CodeArithmetic kArithmetic>() -> QuantizeKernel {
    switch (from) {
      case DType::BF16:
        return use.template operator()<DType::BF16, kKind, kArithmetic>();
      case DType::F16:
        return use.template operator()<DType::F16, kKind, kArithmetic>();
      case DType::F32:
        return use.template operator()<DType::F32, kKind, kArithmetic>();
      default:
        return nullptr;
    }
  };
  using enum CodeArithmetic;
  const auto is = [&](CodeKind wanted, CodeArithmetic by) {
    return kind == wanted && arithmetic == by;
  };
  if (is(CodeKind::E4M3, Product)) return with.template operator()<CodeKind::E4M3, Product>();
  if (is(CodeKind::E4M3, Quotient)) return with.template operator()<CodeKind::E4M3, Quotient>();
  if (is(CodeKind::E4M3, RoundedQuotient)) {
    return with.template operator()<CodeKind::E4M3, RoundedQuotient>();
  }
  if (is(CodeKind::I8, RoundedQuotient)) {
    return with.template operator()<CodeKind::I8, RoundedQuotient>();
  }
  if (is(CodeKind::I4, RoundedQuotient)) {
    return with.template operator()<CodeKind::I4, RoundedQuotient>();
  }
  if (is(CodeKind::I4, RoundedSum)) return with.template operator()<CodeKind::I4, RoundedSum>();
  if (is(CodeKind::E2M1, Quotient)) return with.template operator()<CodeKind::E2M1, Quotient>();
  if (is(CodeKind::E2M1, RoundedQuotient)) {
    return with.template operator()<CodeKind::E2M1, RoundedQuotient>();
  }
  if (is(CodeKind::NF4, Product)) return with.template operator()<CodeKind::NF4, Product>();
  if (is(CodeKind::NF4, Quotient)) return with.template operator()<CodeKind::NF4, Quotient>();
  return nullptr;
}

}  // namespace ckfs::quantize
