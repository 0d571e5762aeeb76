// Shards of one model mostly have the same metadata: it is kept once. The bytes are bounded, for a
// header may have a hundred megabytes of it.
#include "source/hf/header_metadata.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "base/text.h"
#include "format/json_text.h"
#include "format/json_tree.h"

namespace ckfs {
namespace {

/// Bytes of metadata of headers that are kept, those of all files together.
constexpr std::uint64_t kMaxMetadata = std::uint64_t{16} << 20;
constexpr std::string_view kComfyFormats = "_quantization_metadata";

/// Whether an entry of a header's metadata says how the file's tensors are quantized.
bool describes_quantization(std::string_view key) {
  std::string lower(key);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  constexpr std::array<std::string_view, 3> kWords{"quant", "gptq", "awq"};
  return std::ranges::any_of(
      kWords, [&](std::string_view word) { return lower.find(word) != std::string::npos; });
}

/// Formats of 4 bits and of blocks have the names and dtypes of ModelOpt's tensors, but scales in
/// another order.
std::string fault_of_formats(std::string_view text) {
  const auto json = parse_json_tree(text, kComfyFormats, JsonKeys::LastWins);
  if (!json) return json.error().message();
  const JsonNode* const layers = json->find("layers");
  if (layers == nullptr || layers->kind != JsonNode::Kind::Object) return "it names no layers";
  for (std::size_t i = 0; i < layers->items.size(); ++i) {
    const JsonNode* const format = layers->items[i].find("format");
    if (format == nullptr || (format->text != "float8_e4m3fn" && format->text != "float8_e5m2")) {
      return fmt::format("layer {} is {} (known: float8_e4m3fn, float8_e5m2)",
                         quote(one_line(layers->keys[i])),
                         format == nullptr ? "of no format" : quote(one_line(format->text)));
    }
  }
  return {};
}

}  // namespace

void ShardMetadata::add(const safetensors::Header& header) {
  auto kept = std::make_shared<HeaderMetadata>();
  std::uint64_t bytes = 0;
  for (const auto& [key, value] : header.metadata()) {
    if (key == "format" || key.starts_with("DCP_")) continue;
    bytes += key.size() + value.size() + sizeof(HeaderMetadata::value_type);
    kept->emplace_back(key, value);
  }
  lost_ += header.metadata_not_kept().size();
  if (kept->empty()) {
    all_.emplace_back();
    return;
  }
  const auto before = std::find_if(all_.rbegin(), all_.rend(),
                                   [](const auto& metadata) { return metadata != nullptr; });
  if (before != all_.rend() && **before == *kept) {
    all_.push_back(*before);
    return;
  }
  if (bytes > kMaxMetadata - kept_bytes_) {
    lost_ += kept->size();
    all_.emplace_back();
    return;
  }
  kept_bytes_ += bytes;
  all_.push_back(std::move(kept));
}

void ShardMetadata::note(CatalogBuilder& builder, std::span<const std::string> shards,
                         bool joined) const {
  constexpr std::size_t kNamed = 5;
  const HeaderMetadata* before = nullptr;
  std::size_t noted = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const HeaderMetadata* const own = all_[i].get();
    if (own == nullptr || own == before || ++noted > kMaxNotes) continue;
    before = own;
    std::string keys;
    for (std::size_t k = 0; k < std::min(own->size(), kNamed); ++k) {
      keys += fmt::format("{}{}", k > 0 ? ", " : "", (*own)[k].first);
    }
    if (own->size() > kNamed) keys += fmt::format(" and {} more", own->size() - kNamed);
    builder.add_note(shards[i],
                     fmt::format("its header's metadata ({}) is {}", keys,
                                 joined ? "dropped: the files are slices"
                                        : "in views whose files mirror the source's, and dropped "
                                          "in others"));
  }
  if (lost_ > 0) {
    builder.add_note(
        shards.front(),
        fmt::format("{} entries of headers' metadata are dropped: too many bytes", lost_));
  }
}

std::shared_ptr<const HeaderMetadata> without_quantization(
    const std::shared_ptr<const HeaderMetadata>& metadata) {
  const auto is_of_codes = [](const auto& entry) { return describes_quantization(entry.first); };
  if (metadata == nullptr || std::ranges::none_of(*metadata, is_of_codes)) return metadata;
  auto plain = std::make_shared<HeaderMetadata>(*metadata);
  std::erase_if(*plain, is_of_codes);
  return plain;
}

std::string comfy_fault(const safetensors::Header& header) {
  std::string fault;
  for (const auto& [key, value] : header.metadata()) {
    if (key == kComfyFormats) fault = fault_of_formats(value);
  }
  if (std::ranges::find(header.metadata_not_kept(), kComfyFormats) !=
      header.metadata_not_kept().end()) {
    fault = "too long to be read";
  }
  return fault.empty() ? fault : fmt::format("{}: {}", kComfyFormats, fault);
}

}  // namespace ckfs
