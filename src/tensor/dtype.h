// Element types: the dtypes of safetensors 0.8 (safetensors/src/tensor.rs, enum Dtype) and the ones
// that torch files add. Values are little-endian, elements are dense.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ckfs {

/// In the order of safetensors' enum, which its writer sorts by (descending): do not reorder.
/// C128 is torch's only: safetensors cannot hold it.
enum class DType : std::uint8_t {
  Bool,
  F4,
  F6E2M3,
  F6E3M2,
  U8,
  I8,
  F8E5M2,
  F8E4M3,
  F8E8M0,
  F8E4M3FNUZ,
  F8E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64,
  C128,
};

inline constexpr int kDTypeCount = static_cast<int>(DType::C128) + 1;

/// Bits of one element: 4 (F4), 6 (F6*), 8, 16, 32, 64 or 128.
int bits(DType dtype);

/// The name in a safetensors header: "BF16", "F8_E4M3", ...; "C128" for C128.
std::string_view name(DType dtype);

/// The dtype with that safetensors name; nullopt for C128 and for unknown names.
std::optional<DType> parse_dtype(std::string_view name);

/// Whether a cast touches it: F64, F32, F16 and BF16. (F8, F6, F4 and complex numbers pass
/// unchanged: without a scale their meaning is not known.)
bool is_castable_float(DType dtype);

/// Whether it is one of the four F8 that hold values: not the powers of two of F8E8M0.
bool is_f8(DType dtype);

/// Bytes of `count` elements, or the offset of element `count`, where that is known to fit: whole
/// bytes; F4 and F6 in pairs and fours. Numbers from files go through nbytes().
inline std::uint64_t bytes_of(DType dtype, std::int64_t count) {
  return static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(bits(dtype)) / 8;
}

/// Bytes of `numel` elements; nullopt when they are 2^61 or more (their bits overflow), or do not
/// end on a whole byte, or when `numel` is negative.
std::optional<std::uint64_t> nbytes(DType dtype, std::int64_t numel);

}  // namespace ckfs
