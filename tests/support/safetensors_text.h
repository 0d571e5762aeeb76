// A safetensors file of F32 vectors whose bytes look random, but are ordinary numbers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ckfs {

/// `tensors`: names and numbers of elements.
std::string safetensors_text(const std::vector<std::pair<std::string, std::size_t>>& tensors,
                             unsigned seed);

}  // namespace ckfs
