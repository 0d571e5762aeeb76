// The JSON that bitsandbytes stores in a tensor beside each weight of 4-bit codes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tensor/dtype.h"

namespace ckfs {

/// Its members, checked one by one; the caller checks that shape and blocks fit the tensors.
struct QuantState {
  /// Of scales that are quantized themselves.
  struct Nested {
    std::int64_t block = 0;
    float offset = 0;  // finite
  };
  std::string type;                 // "nf4", "fp4"
  DType dtype = DType::F32;         // of the decoded weight: F32, F16 or BF16
  std::int64_t block = 0;           // even
  std::vector<std::int64_t> shape;  // 1 to 8 positive numbers
  std::optional<Nested> nested;
};

/// Errors: Corrupt, which begin with `name`.
Result<QuantState> parse_quant_state(std::string_view text, std::string_view name);

}  // namespace ckfs
