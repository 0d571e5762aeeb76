// The table of dtypes. One row each, in the order of the enum, so that a dtype's number is its row;
// switches over the enum in each function would spread one fact over four places.
#include "tensor/dtype.h"

#include <array>

#include "base/checked.h"

namespace ckfs {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int bits;
};

constexpr std::array<Row, kDTypeCount> kRows{{
    {DType::Bool, "BOOL", 8},
    {DType::F4, "F4", 4},
    {DType::F6E2M3, "F6_E2M3", 6},
    {DType::F6E3M2, "F6_E3M2", 6},
    {DType::U8, "U8", 8},
    {DType::I8, "I8", 8},
    {DType::F8E5M2, "F8_E5M2", 8},
    {DType::F8E4M3, "F8_E4M3", 8},
    {DType::F8E8M0, "F8_E8M0", 8},
    {DType::F8E4M3FNUZ, "F8_E4M3FNUZ", 8},
    {DType::F8E5M2FNUZ, "F8_E5M2FNUZ", 8},
    {DType::I16, "I16", 16},
    {DType::U16, "U16", 16},
    {DType::F16, "F16", 16},
    {DType::BF16, "BF16", 16},
    {DType::I32, "I32", 32},
    {DType::U32, "U32", 32},
    {DType::F32, "F32", 32},
    {DType::C64, "C64", 64},
    {DType::F64, "F64", 64},
    {DType::I64, "I64", 64},
    {DType::U64, "U64", 64},
    {DType::C128, "C128", 128},
}};

constexpr bool rows_stand_in_enum_order() {
  for (std::size_t i = 0; i < kRows.size(); ++i) {
    if (static_cast<std::size_t>(kRows[i].dtype) != i) return false;
  }
  return true;
}
static_assert(rows_stand_in_enum_order());

const Row& row(DType dtype) {
  return kRows[static_cast<std::size_t>(dtype)];
}

}  // namespace

int bits(DType dtype) {
  return row(dtype).bits;
}

std::string_view name(DType dtype) {
  return row(dtype).name;
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (const Row& candidate : kRows) {
    if (candidate.name == name && candidate.dtype != DType::C128) return candidate.dtype;
  }
  return std::nullopt;
}

bool is_castable_float(DType dtype) {
  return dtype == DType::F64 || dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16;
}

bool is_f8(DType dtype) {
  return dtype == DType::F8E4M3 || dtype == DType::F8E5M2 || dtype == DType::F8E4M3FNUZ ||
         dtype == DType::F8E5M2FNUZ;
}

std::optional<std::uint64_t> nbytes(DType dtype, std::int64_t numel) {
  const std::optional<std::uint64_t> count = checked_cast<std::uint64_t>(numel);
  if (!count) return std::nullopt;
  const std::optional<std::uint64_t> total =
      checked_mul(*count, static_cast<std::uint64_t>(bits(dtype)));
  if (!total || *total % 8 != 0) return std::nullopt;
  return *total / 8;
}

}  // namespace ckfs
