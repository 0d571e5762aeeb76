// Fuzz target: a checkpoint's headers, small tensors and configuration, as the quantization schemes
// see them. Whatever they take must decode: within its bytes, and with the same bits by both kernel
// sets, whole and in parts.
//
// The input is choices: names from the words that schemes know, any dtype and shape, any content.
#include "source/hf/quantization.h"

#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "base/checked.h"
#include "fuzz/fuzz_input.h"
#include "fuzz/work_limit.h"

namespace ckfs {
namespace {

/// Files without end: byte i of a file is a function of both.
class EndlessSource final : public ByteSource {
 public:
  explicit EndlessSource(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  Result<void> read(std::span<const ReadRequest> batch) override {
    for (const ReadRequest& request : batch) {
      const std::string& text = texts_[request.file];
      for (std::size_t i = 0; i < request.out.size(); ++i) {
        const std::uint64_t at = request.offset + i;
        request.out[i] = at < text.size() ? static_cast<std::byte>(text[at])
                                          : static_cast<std::byte>(at * 37 + request.file * 11);
      }
    }
    return {};
  }
  std::uint64_t size(FileId) const override { return ~std::uint64_t{0}; }
  const std::string& name(FileId) const override { return name_; }

 private:
  std::vector<std::string> texts_;
  std::string name_ = "f";
};

constexpr const char* kEndings[] = {".weight",
                                    ".qweight",
                                    ".qzeros",
                                    ".scales",
                                    ".g_idx",
                                    ".SCB",
                                    ".weight_format",
                                    ".weight.absmax",
                                    ".weight.quant_map",
                                    ".weight.nested_absmax",
                                    ".weight.nested_quant_map",
                                    ".weight.quant_state.bitsandbytes__nf4",
                                    ".weight.quant_state.bitsandbytes__fp4",
                                    ".weight_scale",
                                    ".weight_scale_scale",
                                    ".weight_scale_inv",
                                    ".weight_scale_2",
                                    ".weight_packed",
                                    ".weight_shape",
                                    ".weight_zero_point",
                                    ".weight_g_idx",
                                    ".weight_global_scale",
                                    ".scale",
                                    ".qscale_weight",
                                    ".input_scale",
                                    "_blocks",
                                    "_scales",
                                    ".bias"};
constexpr const char* kMethods[] = {
    "gptq",     "awq",   "bitsandbytes", "fp8",        "compressed-tensors",
    "modelopt", "mxfp4", "mxfp8",        "fbgemm_fp8", "x",
    ""};
constexpr const char* kFormats[] = {"gptq",
                                    "gptq_v2",
                                    "pack-quantized",
                                    "float-quantized",
                                    "int-quantized",
                                    "nvfp4-pack-quantized",
                                    "mxfp4-pack-quantized",
                                    "naive-quantized",
                                    "x"};

std::string pick(FuzzChoices& choices, std::span<const char* const> words) {
  return words[static_cast<std::size_t>(choices.below(static_cast<std::int64_t>(words.size())))];
}

/// Mostly sizes that fit each other, sometimes any.
std::int64_t extent(FuzzChoices& choices) {
  constexpr std::int64_t kUsual[] = {0, 1, 2, 3, 4, 8, 12, 16, 24, 32, 64, 96, 128, 256};
  const std::int64_t kind = choices.below(20);
  if (kind == 0) return static_cast<std::int64_t>(choices.bits() >> (1 + choices.below(62)));
  return kUsual[choices.below(std::size(kUsual))];
}

std::string config(FuzzChoices& choices) {
  std::string text = "{";
  const auto add = [&](const std::string& member) {
    if (choices.below(3) == 0) return;
    text += (text.size() > 1 ? ", " : "") + member;
  };
  const auto number = [&] { return std::to_string(extent(choices) - choices.below(2)); };
  const auto word = [&](std::span<const char* const> words) {
    return "\"" + pick(choices, words) + "\"";
  };
  add("\"quant_method\": " + word(kMethods));
  add("\"bits\": " + number());
  add("\"group_size\": " + number());
  add("\"desc_act\": " + std::string(choices.below(2) == 0 ? "true" : "false"));
  add("\"checkpoint_format\": " + word(kFormats));
  add("\"format\": " + word(kFormats));
  add("\"meta\": {\"quantizer\": [\"gptqmodel:" + number() + ".0\"]}");
  add("\"version\": \"gemm\"");
  add("\"weight_block_size\": [" + number() + ", " + number() + "]");
  add("\"config_groups\": {\"g\": {\"targets\": [\"Linear\"], \"format\": " + word(kFormats) +
      ", \"weights\": {\"num_bits\": " + number() + ", \"group_size\": " + number() +
      ", \"symmetric\": " + (choices.below(2) == 0 ? "true" : "false") +
      ", \"strategy\": \"group\", \"type\": \"int\"}}}");
  return text + "}";
}

std::string state(FuzzChoices& choices) {
  std::string text =
      "{\"quant_type\": \"" + std::string(choices.below(2) == 0 ? "nf4" : "fp4") +
      "\", \"dtype\": \"bfloat16\", \"blocksize\": " + std::to_string(extent(choices)) +
      ", \"shape\": [" + std::to_string(extent(choices)) + ", " + std::to_string(extent(choices)) +
      "]";
  if (choices.below(2) == 0) {
    text += ", \"nested_blocksize\": " + std::to_string(extent(choices)) +
            ", \"nested_dtype\": \"float32\", \"nested_offset\": 0." +
            std::to_string(choices.below(1000));
  }
  return text + "}";
}

/// The values of elements, from nothing but their needs.
std::vector<std::byte> decoded(const Catalog& catalog, const Storage& storage, ByteSource& source,
                               ElementRange elements, DType to, KernelSet kernels) {
  std::vector<StorageId> ids(storage.companions().begin(), storage.companions().end());
  std::vector<PartRange> needs;
  storage.encoding->add_needs(elements, needs);
  std::ranges::sort(needs, {},
                    [](const PartRange& need) { return std::pair(need.part, need.range.begin); });
  std::vector<std::vector<PartBytes::Window>> windows(1 + ids.size());
  const auto part_of = [&](std::size_t part) -> const Storage& {
    return part == 0 ? storage : catalog.storage(ids.at(part - 1));
  };
  for (const PartRange& need : needs) {
    CKFS_CHECK(need.range.end <= part_of(need.part).nbytes());
    CKFS_CHECK(need.range.size() <= storage.encoding->most_bytes(need.part, elements.count));
    auto& all = windows[need.part];
    if (!all.empty() && need.range.begin <= all.back().range.end) {
      all.back().range.end = std::max(all.back().range.end, need.range.end);
    } else {
      all.push_back({need.range});
    }
  }
  std::deque<std::vector<std::byte>> copies;  // of nothing else
  for (std::size_t part = 0; part < windows.size(); ++part) {
    for (PartBytes::Window& window : windows[part]) {
      const Extent& extent = part_of(part).extents.front();
      auto& copy = copies.emplace_back(window.range.size());
      const ReadRequest request{extent.file, extent.offset + window.range.begin, copy};
      CKFS_CHECK(source.read(std::span(&request, 1)).has_value());
      window.bytes = copy.data();
    }
  }
  const std::vector<std::span<const PartBytes::Window>> views(windows.begin(), windows.end());
  std::vector<std::byte> out(bytes_of(to, elements.count));
  std::vector<std::byte> scratch(storage.encoding->scratch(elements.count));
  // A companion may contradict itself; both sets say so.
  if (!storage.encoding->decode(elements, PartBytes(views), {to, out, scratch, kernels})) {
    return {};
  }
  return out;
}

void check(const Catalog& catalog, const Storage& storage, ByteSource& source,
           FuzzChoices& choices) {
  if (storage.encoding->is_plain() || storage.numel == 0) return;
  CKFS_CHECK(storage.encoding->nbytes(storage.numel) == storage.nbytes());
  const std::int64_t unit = storage.encoding->granule().unit();
  CKFS_CHECK(unit >= 1 && unit <= kMaxUnit);
  const std::int64_t first = choices.below(storage.numel) / unit * unit;
  const std::int64_t count =
      std::min(storage.numel - first, unit * (1 + choices.below(600 / unit + 1)));
  for (const DType to : {storage.encoding->dtype(), DType::BF16, DType::F16}) {
    if (!storage.encoding->decodes_to(to)) continue;
    const auto plain = decoded(catalog, storage, source, {first, count}, to, KernelSet::Reference);
    CKFS_CHECK(plain == decoded(catalog, storage, source, {first, count}, to, KernelSet::Fast));
    const std::int64_t part = std::min(count, unit);
    const auto begin = decoded(catalog, storage, source, {first, part}, to, KernelSet::Fast);
    CKFS_CHECK(plain.empty() || std::equal(begin.begin(), begin.end(), plain.begin()));
  }
}

}  // namespace
}  // namespace ckfs

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const WorkLimit limit(size);
  FuzzChoices choices(std::as_bytes(std::span(data, size)));
  constexpr DType kDTypes[] = {DType::U8,   DType::I8,     DType::I32,    DType::F16, DType::F32,
                               DType::BF16, DType::F8E4M3, DType::F8E8M0, DType::I64};
  CatalogBuilder builder("fuzz");
  std::set<std::string> names;
  std::vector<std::string> texts;
  Shard shard;
  const std::int64_t count = 1 + choices.below(10);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string name = (choices.below(4) == 0 ? "n" : "m") + pick(choices, kEndings);
    if (names.contains(name)) continue;
    const bool is_state = name.find("quant_state") != std::string::npos;
    DType dtype = kDTypes[choices.below(std::size(kDTypes))];
    std::vector<std::int64_t> shape;
    texts.push_back(is_state ? state(choices) : std::string());
    if (is_state) {
      dtype = DType::U8;
      shape = {static_cast<std::int64_t>(texts.back().size())};
    } else {
      for (std::int64_t rank = choices.below(4); rank >= 0; --rank)
        shape.push_back(extent(choices));
    }
    const auto numel = checked_numel(shape);
    const auto bytes = numel ? nbytes(dtype, *numel) : std::nullopt;
    if (!bytes) continue;  // the header's reader refuses it
    const Extent extent{static_cast<FileId>(texts.size() - 1), 0, *bytes};
    const StorageId storage =
        builder.add_storage(dtype, *numel, std::span(&extent, *bytes == 0 ? 0 : 1));
    shard.tensors.push_back(builder.add_tensor(name, shape, storage));
    names.insert(name);
  }
  const std::string text = "{\"quantization_config\": " + config(choices) + "}";
  const auto parsed = find_quantization(text, "config.json");
  if (!parsed) return 0;
  EndlessSource source(std::move(texts));
  QuantizationCost cost;
  if (!apply_quantization(builder, TensorNames(builder), *parsed, source, cost)) return 0;
  builder.add_shard(std::move(shard));
  const auto catalog = std::move(builder).build();
  for (const Storage& storage : catalog->storages()) check(*catalog, storage, source, choices);
  return 0;
}
