// Small safetensors files for tests of their sources.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "format/safetensors.h"

namespace ckfs {

/// Of a safetensors file.
struct FileTensor {
  std::string name;
  DType dtype = DType::BF16;
  std::vector<std::int64_t> shape = {2};
};

/// A safetensors file with data of zeros, in the order given.
inline std::string file_of(const std::vector<FileTensor>& tensors) {
  std::vector<safetensors::TensorHead> heads;
  std::uint64_t data = 0;
  for (const FileTensor& tensor : tensors) {
    heads.push_back({tensor.name, tensor.dtype, tensor.shape});
    data += safetensors::data_size(heads.back());
  }
  return safetensors::render_header(heads) + std::string(data, '\0');
}

}  // namespace ckfs
