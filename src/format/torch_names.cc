// Tables rather than rules: torch has two names for many dtypes, and the storage classes follow C's
// names, not those of the dtypes.
#include "format/torch_names.h"

#include <algorithm>
#include <array>

namespace ckfs {
namespace {

struct Named {
  std::string_view name;
  DType dtype;
};

constexpr auto kDTypes = std::to_array<Named>({
    {"bool", DType::Bool},
    {"uint8", DType::U8},
    {"int8", DType::I8},
    {"int16", DType::I16},
    {"short", DType::I16},
    {"uint16", DType::U16},
    {"int32", DType::I32},
    {"int", DType::I32},
    {"uint32", DType::U32},
    {"int64", DType::I64},
    {"long", DType::I64},
    {"uint64", DType::U64},
    {"float8_e5m2", DType::F8E5M2},
    {"float8_e4m3fn", DType::F8E4M3},
    {"float8_e8m0fnu", DType::F8E8M0},
    {"float8_e4m3fnuz", DType::F8E4M3FNUZ},
    {"float8_e5m2fnuz", DType::F8E5M2FNUZ},
    {"float16", DType::F16},
    {"half", DType::F16},
    {"bfloat16", DType::BF16},
    {"float32", DType::F32},
    {"float", DType::F32},
    {"float64", DType::F64},
    {"double", DType::F64},
    {"complex64", DType::C64},
    {"cfloat", DType::C64},
    {"complex128", DType::C128},
    {"cdouble", DType::C128},
});

constexpr auto kStorages = std::to_array<Named>({
    {"DoubleStorage", DType::F64},
    {"FloatStorage", DType::F32},
    {"HalfStorage", DType::F16},
    {"BFloat16Storage", DType::BF16},
    {"LongStorage", DType::I64},
    {"IntStorage", DType::I32},
    {"ShortStorage", DType::I16},
    {"CharStorage", DType::I8},
    {"ByteStorage", DType::U8},
    {"BoolStorage", DType::Bool},
    {"ComplexFloatStorage", DType::C64},
    {"ComplexDoubleStorage", DType::C128},
});

template <std::size_t N>
std::optional<DType> find(const std::array<Named, N>& table, std::string_view name) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const Named& n) { return n.name == name; });
  if (found == table.end()) return std::nullopt;
  return found->dtype;
}

}  // namespace

std::optional<DType> torch_dtype(std::string_view name) {
  return find(kDTypes, name);
}

std::string_view torch_dtype_name(DType dtype) {
  const auto* const found = std::ranges::find(kDTypes, dtype, &Named::dtype);
  return found == kDTypes.end() ? std::string_view() : found->name;
}

std::optional<StorageType> storage_type(std::string_view name) {
  if (name == "UntypedStorage") return StorageType{};
  const auto dtype = find(kStorages, name);
  if (!dtype) return std::nullopt;
  return StorageType{dtype};
}

}  // namespace ckfs
