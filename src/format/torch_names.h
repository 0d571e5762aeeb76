// Torch's names of dtypes and of typed storages.
#pragma once

#include <optional>
#include <string_view>

#include "tensor/dtype.h"

namespace ckfs {

/// The dtype of `torch.<name>` ("float8_e4m3fn", "half"); nullopt for one that DType does not have.
std::optional<DType> torch_dtype(std::string_view name);

/// The first of its names: "float32"; empty: torch does not have it.
std::string_view torch_dtype_name(DType dtype);

/// What a storage class ("FloatStorage") holds.
struct StorageType {
  std::optional<DType> dtype;  // nullopt: bytes without a dtype
};

/// nullopt: unknown, or of a quantized dtype.
std::optional<StorageType> storage_type(std::string_view name);

}  // namespace ckfs
