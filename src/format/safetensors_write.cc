// The header as safetensors' own writer makes it, to the byte: dtype descending, names ascending,
// compact JSON with serde_json's escapes, padded with spaces to a multiple of eight.
//
// The size of every file must be known at mount, and a model has a hundred headers of up to a
// megabyte each; so measuring walks the same code as rendering, into a sink that only counts.
#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/load_le.h"
#include "base/text.h"
#include "format/safetensors.h"
#include "format/text_sink.h"

namespace ckfs::safetensors {
namespace {

constexpr std::string_view kHead = R"({"__metadata__":{"format":"pt")";

template <typename Sink>
void put_number(Sink& sink, std::uint64_t value) {
  const fmt::format_int digits(value);
  sink.put({digits.data(), digits.size()});
}

/// serde_json escapes the quote, the backslash and control characters, nothing else.
template <typename Sink>
void put_string(Sink& sink, std::string_view text) {
  sink.put("\"");
  if (is_plain_json(text)) {
    sink.put(text);
    sink.put("\"");
    return;
  }
  std::size_t plain = 0;  // where the run without escapes begins
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    sink.put(text.substr(plain, i - plain));
    plain = i + 1;
    switch (c) {
      case '"':
        sink.put("\\\"");
        break;
      case '\\':
        sink.put("\\\\");
        break;
      case '\b':
        sink.put("\\b");
        break;
      case '\t':
        sink.put("\\t");
        break;
      case '\n':
        sink.put("\\n");
        break;
      case '\f':
        sink.put("\\f");
        break;
      case '\r':
        sink.put("\\r");
        break;
      default:
        sink.put(fmt::format("\\u{:04x}", static_cast<unsigned>(c)));
    }
  }
  sink.put(text.substr(plain));
  sink.put("\"");
}

template <typename Sink>
void put_header(Sink& sink, std::span<const TensorHead> tensors,
                std::span<const MetadataEntry> metadata) {
  sink.put(kHead);
  for (const auto& [key, value] : metadata) {
    sink.put(",");
    put_string(sink, key);
    sink.put(":");
    put_string(sink, value);
  }
  sink.put("}");
  std::uint64_t offset = 0;
  for (const TensorHead& tensor : tensors) {
    sink.put(",");
    put_string(sink, tensor.name);
    sink.put(R"(:{"dtype":")");
    sink.put(name(tensor.dtype));
    sink.put(R"(","shape":[)");
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      if (d > 0) sink.put(",");
      put_number(sink, static_cast<std::uint64_t>(tensor.shape[d]));
    }
    sink.put(R"(],"data_offsets":[)");
    put_number(sink, offset);
    sink.put(",");
    offset += data_size(tensor);
    put_number(sink, offset);
    sink.put("]}");
  }
  sink.put("}");
}

std::uint64_t padded(std::uint64_t size) {
  return (size + 7) / 8 * 8;
}

}  // namespace

bool canonical_less(const TensorHead& a, const TensorHead& b) {
  if (a.dtype != b.dtype) return a.dtype > b.dtype;
  return a.name < b.name;
}

std::uint64_t data_size(const TensorHead& tensor) {
  const auto numel = checked_numel(tensor.shape);
  CKFS_CHECK(numel.has_value());
  const auto size = nbytes(tensor.dtype, *numel);
  CKFS_CHECK(size.has_value());
  return *size;
}

std::uint64_t measure_header(std::span<const TensorHead> tensors,
                             std::span<const MetadataEntry> metadata) {
  CountingSink sink;
  put_header(sink, tensors, metadata);
  return kLengthBytes + padded(sink.size());
}

std::string render_header(std::span<const TensorHead> tensors,
                          std::span<const MetadataEntry> metadata) {
  const std::uint64_t size = measure_header(tensors, metadata);
  std::string out;
  out.reserve(size);
  std::array<std::byte, kLengthBytes> length{};
  store_le<std::uint64_t>(length, size - kLengthBytes);
  for (const std::byte byte : length) out += static_cast<char>(byte);
  TextSink sink(out);
  put_header(sink, tensors, metadata);
  out.resize(size, ' ');
  return out;
}

}  // namespace ckfs::safetensors
