// The index as Python's json.dumps(indent=2, sort_keys=True) writes it, so that a tool which writes
// it again gets the same file. As with safetensors headers, measuring is rendering into a counter.
#include "base/error.h"
#include "format/hf_index.h"
#include "format/python_json.h"

namespace ckfs {
namespace {

template <typename Put>
void put_index(const Put& put, std::span<const IndexName> names, std::uint64_t total_size) {
  put("{\n  \"metadata\": {\n    \"total_size\": ");
  const fmt::format_int digits(total_size);
  put({digits.data(), digits.size()});
  put("\n  },\n  \"weight_map\": {");
  const char* separator = "\n    ";
  for (const IndexName& entry : names) {
    put(separator);
    put_python_string(put, entry.name);
    put(": ");
    put_python_string(put, entry.file);
    separator = ",\n    ";
  }
  put(names.empty() ? "}\n}\n" : "\n  }\n}\n");
}

}  // namespace

std::uint64_t measure_hf_index(std::span<const IndexName> names, std::uint64_t total_size) {
  std::uint64_t size = 0;
  put_index([&](std::string_view text) { size += text.size(); }, names, total_size);
  return size;
}

std::string render_hf_index(std::span<const IndexName> names, std::uint64_t total_size) {
  std::string out;
  out.reserve(measure_hf_index(names, total_size));
  put_index([&](std::string_view text) { out += text; }, names, total_size);
  return out;
}

}  // namespace ckfs
