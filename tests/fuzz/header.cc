// Fuzz target: a safetensors file's first bytes. What is accepted must keep the promises of Header.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "format/safetensors.h"
#include "fuzz/work_limit.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const WorkLimit limit(size);
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto bytes = std::as_bytes(std::span(file.data(), file.size()));
  const auto length =
      safetensors::header_length(bytes.first(std::min<std::size_t>(size, 64)), size, "f");
  if (!length) return 0;
  const auto header =
      safetensors::parse_header(file.substr(safetensors::kLengthBytes, *length), size, "f");
  if (!header) {
    CKFS_CHECK(header.error().message().find('\n') == std::string::npos);
    return 0;
  }
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < header->size(); ++i) {
    const safetensors::HeaderTensor tensor = (*header)[i];
    CKFS_CHECK(tensor.begin == end);
    CKFS_CHECK(safetensors::data_size({tensor.name, tensor.dtype, tensor.shape}) ==
               tensor.end - tensor.begin);
    end = tensor.end;
  }
  CKFS_CHECK(header->data_offset() + end == size);
  return 0;
}
