#include "format/zarr.h"

#include <array>

#include "base/error.h"

namespace ckfs::zarr {
namespace {

struct Names {
  std::string_view v3;
  std::string_view v2;
  std::string_view zero;  // fill value of version 3
};

/// The names of TensorStore's data types; empty: an array has other elements than the tensor.
Names names_of(DType dtype) {
  switch (dtype) {
    case DType::Bool:
      return {"bool", "|b1", "false"};
    case DType::U8:
      return {"uint8", "|u1", "0"};
    case DType::I8:
      return {"int8", "|i1", "0"};
    case DType::F8E5M2:
      return {"float8_e5m2", "float8_e5m2", "0.0"};
    case DType::F8E4M3:
      return {"float8_e4m3fn", "float8_e4m3fn", "0.0"};
    case DType::F8E8M0:
      return {"float8_e8m0fnu", "float8_e8m0fnu", "0.0"};
    case DType::F8E4M3FNUZ:
      return {"float8_e4m3fnuz", "float8_e4m3fnuz", "0.0"};
    case DType::F8E5M2FNUZ:
      return {"float8_e5m2fnuz", "float8_e5m2fnuz", "0.0"};
    case DType::I16:
      return {"int16", "<i2", "0"};
    case DType::U16:
      return {"uint16", "<u2", "0"};
    case DType::F16:
      return {"float16", "<f2", "0.0"};
    case DType::BF16:
      return {"bfloat16", "bfloat16", "0.0"};
    case DType::I32:
      return {"int32", "<i4", "0"};
    case DType::U32:
      return {"uint32", "<u4", "0"};
    case DType::F32:
      return {"float32", "<f4", "0.0"};
    case DType::C64:
      return {"complex64", "<c8", "[0.0,0.0]"};
    case DType::F64:
      return {"float64", "<f8", "0.0"};
    case DType::I64:
      return {"int64", "<i8", "0"};
    case DType::U64:
      return {"uint64", "<u8", "0"};
    case DType::C128:
      return {"complex128", "<c16", "[0.0,0.0]"};
    // An array has a byte for each element.
    case DType::F4:
    case DType::F6E2M3:
    case DType::F6E3M2:
      return {};
  }
  return {};
}

std::string list(std::span<const std::int64_t> numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ","));
}

std::string render3(const ArrayHead& array, const Names& names) {
  std::string codecs;
  if (!array.order.empty()) {
    codecs =
        fmt::format(R"({{"configuration":{{"order":{}}},"name":"transpose"}},)", list(array.order));
  }
  codecs += bits(array.dtype) == 8 ? R"({"name":"bytes"})"
                                   : R"({"configuration":{"endian":"little"},"name":"bytes"})";
  return fmt::format(R"({{"chunk_grid":{{"configuration":{{"chunk_shape":{}}},"name":"regular"}},)"
                     R"("chunk_key_encoding":{{"name":"default"}},"codecs":[{}],"data_type":"{}",)"
                     R"("fill_value":{},"node_type":"array","shape":{},"zarr_format":3}})",
                     list(array.chunk), codecs, names.v3, names.zero, list(array.shape));
}

std::string render2(const ArrayHead& array, const Names& names) {
  for (std::size_t d = 0; d < array.order.size(); ++d) {
    CKFS_CHECK(array.order[d] == static_cast<std::int64_t>(array.order.size() - 1 - d));
  }
  return fmt::format(
      R"({{"chunks":{},"compressor":null,"dimension_separator":".","dtype":"{}",)"
      R"("fill_value":null,"filters":null,"order":"{}","shape":{},"zarr_format":2}})",
      list(array.chunk), names.v2, array.order.empty() ? "C" : "F", list(array.shape));
}

}  // namespace

std::string_view data_type_name(Version version, DType dtype) {
  const Names names = names_of(dtype);
  return version == Version::V3 ? names.v3 : names.v2;
}

bool can_hold(DType dtype) {
  return !names_of(dtype).v3.empty();
}

std::string_view metadata_name(Version version) {
  return version == Version::V3 ? "zarr.json" : ".zarray";
}

std::string render_metadata(Version version, const ArrayHead& array) {
  const Names names = names_of(array.dtype);
  CKFS_CHECK(!names.v3.empty());
  return version == Version::V3 ? render3(array, names) : render2(array, names);
}

std::string chunk_name(Version version, std::span<const std::int64_t> index) {
  if (version == Version::V2) return index.empty() ? "0" : fmt::format("{}", fmt::join(index, "."));
  std::string name = "c";
  for (const std::int64_t i : index) {
    const fmt::format_int digits(i);
    name += '/';
    name.append(digits.data(), digits.size());
  }
  return name;
}

}  // namespace ckfs::zarr
