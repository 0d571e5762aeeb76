// The index as Python's json.dumps(indent=2, sort_keys=True) writes it, so that a tool which writes
// it again gets the same file. As with safetensors headers, measuring is rendering into a counter.
#include "base/error.h"
#include "format/hf_index.h"
#include "format/python_json.h"

namespace ckfs {
namespace {

template <typename Put>
void put_entry(const Put& put, const IndexName& entry) {
  put_python_string(put, entry.name);
  put(": ");
  put_python_string(put, entry.file);
}

constexpr std::string_view kBeforeFirst = "\n    ";
constexpr std::string_view kBetween = ",\n    ";

template <typename Put>
void put_head(const Put& put, std::uint64_t total_size) {
  put("{\n  \"metadata\": {\n    \"total_size\": ");
  const fmt::format_int digits(total_size);
  put({digits.data(), digits.size()});
  put("\n  },\n  \"weight_map\": {");
}

constexpr std::string_view tail(bool empty) {
  return empty ? "}\n}\n" : "\n  }\n}\n";
}

}  // namespace

void HfIndexMeasure::add(const IndexName& entry) {
  ++entries_;
  put_entry([&](std::string_view text) { text_ += text.size(); }, entry);
}

std::uint64_t HfIndexMeasure::nbytes(std::uint64_t total_size) const {
  std::uint64_t size = text_ + tail(entries_ == 0).size();
  put_head([&](std::string_view text) { size += text.size(); }, total_size);
  if (entries_ > 0) size += kBeforeFirst.size() + (entries_ - 1) * kBetween.size();
  return size;
}

std::string render_hf_index(std::span<const IndexName> names, std::uint64_t total_size) {
  HfIndexMeasure measure;
  for (const IndexName& entry : names) measure.add(entry);
  std::string out;
  out.reserve(measure.nbytes(total_size));
  const auto put = [&](std::string_view text) { out += text; };
  put_head(put, total_size);
  std::string_view separator = kBeforeFirst;
  for (const IndexName& entry : names) {
    put(separator);
    put_entry(put, entry);
    separator = kBetween;
  }
  put(tail(names.empty()));
  return out;
}

}  // namespace ckfs
