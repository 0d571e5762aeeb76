// Safetensors files for tests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckfs {

/// A file of that header and data, whatever they say.
std::string safetensors_file(std::string_view header, std::string_view data);

/// One of F32 vectors whose bytes look random, but are ordinary numbers. `tensors`: names and
/// numbers of elements.
std::string safetensors_text(const std::vector<std::pair<std::string, std::size_t>>& tensors,
                             unsigned seed);

}  // namespace ckfs
