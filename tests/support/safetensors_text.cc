#include "support/safetensors_text.h"

#include <fmt/format.h>
#include <random>
#include <span>

#include "base/load_le.h"

namespace ckfs {

std::string safetensors_file(std::string_view header, std::string_view data) {
  std::string file(8, '\0');
  store_le(std::as_writable_bytes(std::span(file)), std::uint64_t{header.size()});
  return file.append(header).append(data);
}

std::string safetensors_text(const std::vector<std::pair<std::string, std::size_t>>& tensors,
                             unsigned seed) {
  std::string header = "{", bytes;
  std::mt19937 random(seed);
  for (const auto& [name, size] : tensors) {
    const std::size_t begin = bytes.size();
    for (std::size_t i = 0; i < size; ++i) {
      const float value = static_cast<float>(random() % 65536) / 4096 - 8;
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})",
                          header.size() > 1 ? "," : "", name, size, begin, bytes.size());
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return safetensors_file(header, bytes);
}

}  // namespace ckfs
