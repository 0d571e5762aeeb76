// What tests of kernels share.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

#include "tensor/dtype.h"

namespace ckfs {

/// The dtypes that scaled codes decode to.
inline constexpr DType kScaledTo[] = {DType::F32, DType::F16, DType::BF16};

inline std::vector<std::byte> random_bytes(std::mt19937_64& random, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace ckfs
