// A reader of safetensors files for tests: nlohmann's DOM and plain loops, none of ckfs' own code,
// so that it can contradict it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ckfs {

struct PlainTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;

  bool operator==(const PlainTensor&) const = default;
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Adds the tensors of a safetensors file's content.
inline void add_tensors(const std::string& file, std::map<std::string, PlainTensor>& tensors) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  const auto header = nlohmann::json::parse(file.substr(8, length));
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const auto begin = tensor["data_offsets"][0].get<std::uint64_t>();
    const auto end = tensor["data_offsets"][1].get<std::uint64_t>();
    tensors[name] = {tensor["dtype"], tensor["shape"],
                     file.substr(8 + length + begin, end - begin)};
  }
}

/// All safetensors files of a directory.
inline std::map<std::string, PlainTensor> read_tensors(const std::filesystem::path& directory) {
  std::map<std::string, PlainTensor> tensors;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") add_tensors(read_text(entry.path()), tensors);
  }
  return tensors;
}

/// Element `index` of a tensor of F64, F32, F16 or BF16, by the definition of the format.
inline double element(const PlainTensor& tensor, std::size_t index) {
  const auto bits = [&](std::size_t size) {
    std::uint64_t value = 0;
    std::memcpy(&value, tensor.bytes.data() + index * size, size);
    return value;
  };
  if (tensor.dtype == "F64") return std::bit_cast<double>(bits(8));
  if (tensor.dtype == "F32") return std::bit_cast<float>(static_cast<std::uint32_t>(bits(4)));
  if (tensor.dtype == "BF16") {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits(2)) << 16);
  }
  const std::uint64_t half = bits(2);  // F16
  const double sign = (half & 0x8000) != 0 ? -1 : 1;
  const int exponent = static_cast<int>(half >> 10 & 31);
  const auto mantissa = static_cast<double>(half & 1023);
  if (exponent == 31) return mantissa != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

inline std::size_t element_bytes(const std::string& dtype) {
  return dtype == "F64" ? 8 : dtype == "F32" ? 4 : 2;
}

}  // namespace ckfs
