// One template walks the elements; a struct per dtype says how its bits are laid out. F16 and BF16
// go through the casts of kernel.h, so that there is one definition of their rounding.
#include "tensor/arithmetic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "tensor/kernel.h"

namespace ckfs {
namespace {

/// Sign, exponent and mantissa masks of a dtype, and its positive quiet NaN.
template <typename Bits>
struct FloatLayout {
  Bits sign, exponent, mantissa, quiet_nan;
};
constexpr FloatLayout<std::uint64_t> kF64{0x8000000000000000, 0x7ff0000000000000,
                                          0x000fffffffffffff, 0x7ff8000000000000};
constexpr FloatLayout<std::uint32_t> kF32{0x80000000, 0x7f800000, 0x007fffff, 0x7fc00000};
constexpr FloatLayout<std::uint16_t> kF16{0x8000, 0x7c00, 0x03ff, 0x7e00};
constexpr FloatLayout<std::uint16_t> kBF16{0x8000, 0x7f80, 0x007f, 0x7fc0};

template <typename Bits, typename Change>
void for_each_bits(std::byte* values, std::size_t count, Change change) {
  for (std::size_t i = 0; i < count; ++i) {
    Bits element;
    std::memcpy(&element, values + i * sizeof(Bits), sizeof(Bits));
    element = change(element);
    std::memcpy(values + i * sizeof(Bits), &element, sizeof(Bits));
  }
}

/// Compared as signed numbers, for which the oldest vector units have an instruction.
template <typename Bits>
bool is_nan(const FloatLayout<Bits>& layout, Bits element) {
  using Signed = std::make_signed_t<Bits>;
  return static_cast<Signed>(element & static_cast<Bits>(~layout.sign)) >
         static_cast<Signed>(layout.exponent);
}

template <typename Bits>
bool has_nan(const FloatLayout<Bits>& layout, const std::byte* values, std::size_t count) {
  Bits any = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Bits element;
    std::memcpy(&element, values + i * sizeof(Bits), sizeof(Bits));
    any |= is_nan(layout, element) ? static_cast<Bits>(~Bits{0}) : Bits{0};
  }
  return any != 0;
}

/// Calls `use` with the layout of `dtype`, whose type has the width.
template <typename Use>
void with_layout(DType dtype, Use use) {
  switch (dtype) {
    case DType::F64:
      return use(kF64);
    case DType::F32:
      return use(kF32);
    case DType::F16:
      return use(kF16);
    case DType::BF16:
      return use(kBF16);
    default:
      CKFS_CHECK(is_castable_float(dtype));
  }
}

/// A computed NaN takes the sign of the element it was computed from; the CPU's own choice (that of
/// the first NaN operand, or negative for an invalid operation on x86) is not portable.
template <typename Float, typename Bits, typename Operation>
void compute(const FloatLayout<Bits>& layout, std::byte* values, std::size_t count,
             Operation operation) {
  for_each_bits<Bits>(values, count, [&](Bits element) {
    const Float result = operation(std::bit_cast<Float>(element));
    if (std::isnan(result)) return static_cast<Bits>(layout.quiet_nan | (element & layout.sign));
    return std::bit_cast<Bits>(result);
  });
}

template <typename Operation>
void compute_through_f32(DType dtype, std::byte* values, std::size_t count, Operation operation) {
  const CastKernel widen = find_cast(dtype, DType::F32);
  const CastKernel narrow = find_cast(DType::F32, dtype);
  constexpr std::size_t kPiece = 1024;
  std::byte wide[kPiece * 4];
  for (std::size_t done = 0; done < count; done += kPiece) {
    const std::size_t piece = count - done < kPiece ? count - done : kPiece;
    widen(values + done * 2, wide, piece);
    compute<float>(kF32, wide, piece, operation);
    narrow(wide, values + done * 2, piece);
  }
}

template <typename Operation>
void apply(DType dtype, std::byte* values, std::size_t count, Operation operation) {
  switch (dtype) {
    case DType::F64:
      return compute<double>(kF64, values, count, operation);
    case DType::F32:
      return compute<float>(kF32, values, count, operation);
    default:
      return compute_through_f32(dtype, values, count, operation);
  }
}

}  // namespace

void multiply(DType dtype, double operand, std::byte* values, std::size_t count) {
  apply(dtype, values, count,
        [operand](auto value) { return value * static_cast<decltype(value)>(operand); });
}

void add(DType dtype, double operand, std::byte* values, std::size_t count) {
  apply(dtype, values, count,
        [operand](auto value) { return value + static_cast<decltype(value)>(operand); });
}

void flush_subnormals(DType dtype, std::byte* values, std::size_t count) {
  with_layout(dtype, [&]<typename Bits>(const FloatLayout<Bits>& layout) {
    for_each_bits<Bits>(values, count, [&](Bits element) {
      return (element & layout.exponent) == 0 ? static_cast<Bits>(element & layout.sign) : element;
    });
  });
}

void keep_payloads(DType from, const std::byte* values, DType to, std::byte* cast,
                   std::size_t count) {
  with_layout(from, [&](auto wide) {
    with_layout(to, [&](auto narrow) {
      using Wide = decltype(wide.sign);
      using Narrow = decltype(narrow.sign);
      constexpr int kFraction = 52;  // the most bits of a mantissa
      const int wide_bits = std::popcount(wide.mantissa);
      const int narrow_bits = std::popcount(narrow.mantissa);
      for (std::size_t i = 0; i < count; ++i) {
        Wide value;
        std::memcpy(&value, values + i * sizeof(Wide), sizeof(Wide));
        if (!is_nan(wide, value)) continue;
        const std::uint64_t payload = std::uint64_t{static_cast<Wide>(value & wide.mantissa)}
                                          << (kFraction - wide_bits) >>
                                      (kFraction - narrow_bits);
        const Narrow sign = (value & wide.sign) != 0 ? narrow.sign : Narrow{0};
        const auto code = static_cast<Narrow>(sign | narrow.exponent |
                                              (payload == 0 ? std::uint64_t{1} : payload));
        std::memcpy(cast + i * sizeof(Narrow), &code, sizeof(Narrow));
      }
    });
  });
}

/// Hardly any block has a NaN, and to look for one takes half as long as to write all anew.
void quiet_nans(DType dtype, std::byte* values, std::size_t count) {
  with_layout(dtype, [&]<typename Bits>(const FloatLayout<Bits>& layout) {
    constexpr std::size_t kBlock = 1024;  // elements
    for (std::size_t done = 0; done < count; done += kBlock) {
      std::byte* const block = values + done * sizeof(Bits);
      const std::size_t size = std::min(count - done, kBlock);
      if (!has_nan(layout, block, size)) continue;
      for_each_bits<Bits>(block, size, [&](Bits element) {
        const auto quiet = static_cast<Bits>((element & layout.sign) | layout.quiet_nan);
        return is_nan(layout, element) ? quiet : element;
      });
    }
  });
}

void canonical_nan(DType dtype, std::byte* values, std::size_t count) {
  with_layout(dtype, [&]<typename Bits>(const FloatLayout<Bits>& layout) {
    for_each_bits<Bits>(values, count, [&](Bits element) {
      const bool nan =
          (element & layout.exponent) == layout.exponent && (element & layout.mantissa);
      return nan ? layout.quiet_nan : element;
    });
  });
}

}  // namespace ckfs
