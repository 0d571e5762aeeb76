// The index as Python's json.dumps(indent=2, sort_keys=True) writes it, so that a tool which writes
// it again gets the same file. As with safetensors headers, measuring is rendering into a counter.
#include "base/error.h"
#include "format/hf_index.h"

namespace ckfs {
namespace {

/// Appends `text` as Python's json does by default: everything but printable ASCII is escaped, as
/// UTF-16 units. `text` is UTF-8 that was checked when it was read.
template <typename Put>
void put_python_string(const Put& put, std::string_view text) {
  const auto put_unit = [&](std::uint32_t unit) { put(fmt::format("\\u{:04x}", unit)); };
  put("\"");
  for (std::size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) {
      ++i;
      switch (c) {
        case '"':
          put("\\\"");
          break;
        case '\\':
          put("\\\\");
          break;
        case '\b':
          put("\\b");
          break;
        case '\t':
          put("\\t");
          break;
        case '\n':
          put("\\n");
          break;
        case '\f':
          put("\\f");
          break;
        case '\r':
          put("\\r");
          break;
        default:
          if (c < 0x20 || c == 0x7f) {
            put_unit(c);
          } else {
            put(text.substr(i - 1, 1));
          }
      }
      continue;
    }
    const std::size_t length = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    CKFS_CHECK(i + length <= text.size());
    std::uint32_t point = c & (0xffU >> (length + 1));
    for (std::size_t k = 1; k < length; ++k) {
      point = (point << 6) | (static_cast<unsigned char>(text[i + k]) & 0x3fU);
    }
    i += length;
    if (point < 0x10000) {
      put_unit(point);
    } else {
      put_unit(0xd800 + ((point - 0x10000) >> 10));
      put_unit(0xdc00 + ((point - 0x10000) & 0x3ff));
    }
  }
  put("\"");
}

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
