// A converted view must hold the model once. Loaders pick weights by name, each in its own order of
// preference, so old formats beside the safetensors (pytorch_model.bin, consolidated.*, original/,
// GGUF) would be loaded instead of the view's. The lists here say which files count as weights;
// files in no list are shown as they are, because remote code and tokenizers have names of every
// kind.
//
// An adapter beside a model is neither a shard of it nor other weights: loaders (PEFT, diffusers)
// find it by its own name, and read it beside the model, or instead of it.
#include "source/file_role.h"

#include <algorithm>
#include <array>
#include <set>

#include "source/numbered_files.h"

namespace ckfs {
namespace {

constexpr std::array<std::string_view, 19> kWeightEndings = {
    ".safetensors", ".bin",    ".pth",    ".pt",        ".ckpt", ".h5",     ".msgpack",
    ".gguf",        ".ggml",   ".onnx",   ".onnx_data", ".ot",   ".tflite", ".mlmodel",
    ".pdparams",    ".distcp", ".engine", ".llamafile", ".nemo"};

constexpr std::array<std::string_view, 2> kWeightDirectories = {"original", "onnx"};

constexpr std::array<std::string_view, 5> kQuantizationFiles = {
    "hf_quant_config.json", "quantize_config.json", "quant_config.json", "quanto_qmap.json",
    "recipe.yaml"};

constexpr std::array<std::string_view, 3> kIndexMarks = {".safetensors.index", ".bin.index",
                                                         ".msgpack.index"};

constexpr std::array<std::string_view, 2> kAdapterEndings = {".safetensors", ".bin"};

constexpr char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// Whether "lora" is a word of `name`: in "pytorch_lora_weights", not in "exploration".
bool says_lora(std::string_view name) {
  constexpr std::string_view kWord = "lora";
  const auto is_letter = [](char c) { return to_lower(c) >= 'a' && to_lower(c) <= 'z'; };
  for (std::size_t at = 0; at + kWord.size() <= name.size(); ++at) {
    if (!std::ranges::equal(name.substr(at, kWord.size()), kWord, {}, to_lower)) continue;
    const std::size_t end = at + kWord.size();
    if ((at == 0 || !is_letter(name[at - 1])) && (end == name.size() || !is_letter(name[end]))) {
      return true;
    }
  }
  return false;
}

/// The name without the ending of an adapter's file; empty: none such.
std::string_view adapter_stem(std::string_view name) {
  for (const std::string_view ending : kAdapterEndings) {
    if (!name.ends_with(ending)) continue;
    // A numbered file is a shard of a model, whatever that is called.
    if (parse_numbered(name, ending)) return {};
    const std::string_view stem = name.substr(0, name.size() - ending.size());
    const bool is_adapter = stem == "adapter" || stem == "adapters" ||
                            stem.starts_with("adapter_model") || says_lora(stem);
    return is_adapter ? stem : std::string_view();
  }
  return {};
}

}  // namespace

std::vector<std::string> shown_adapters(const std::vector<std::string_view>& paths) {
  const std::set<std::string_view> all(paths.begin(), paths.end());
  std::vector<std::string> shown;
  for (const std::string_view path : all) {
    if (role_of(path) != FileRole::Adapter) continue;
    const std::string_view stem = path.substr(0, path.rfind('.'));
    const std::string preferred = fmt::format("{}.safetensors", stem);
    if (path != preferred && all.contains(preferred)) continue;
    shown.emplace_back(path);
  }
  return shown;
}

bool is_of_another_format(std::string_view path) {
  const std::size_t slash = path.find('/');
  return slash != std::string_view::npos &&
         std::ranges::find(kWeightDirectories, path.substr(0, slash)) != kWeightDirectories.end();
}

FileRole role_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  const std::string_view name = slash == std::string_view::npos ? path : path.substr(slash + 1);
  const auto ends_name = [&](std::string_view ending) { return name.ends_with(ending); };

  for (std::size_t begin = 0; begin < path.size() && slash != std::string_view::npos;) {
    const std::size_t end = path.find('/', begin);
    if (end == std::string_view::npos) break;
    const std::string_view directory = path.substr(begin, end - begin);
    if (directory.starts_with('.') || directory == "__pycache__") return FileRole::Hidden;
    begin = end + 1;
  }
  if (is_of_another_format(path)) return FileRole::Weights;

  if (path == "config.json") return FileRole::Config;
  if (ends_name(".incomplete") || ends_name(".lock")) return FileRole::Hidden;
  if (std::find(kQuantizationFiles.begin(), kQuantizationFiles.end(), name) !=
      kQuantizationFiles.end()) {
    return FileRole::Quantization;
  }
  const bool is_index = std::any_of(kIndexMarks.begin(), kIndexMarks.end(), [&](auto mark) {
    return name.find(mark) != std::string_view::npos;
  });
  if (is_index && ends_name(".json")) return FileRole::Index;
  if (name == "adapter_config.json") return FileRole::AdapterConfig;
  if (!adapter_stem(name).empty()) return FileRole::Adapter;
  if (name.starts_with("consolidated") ||
      std::any_of(kWeightEndings.begin(), kWeightEndings.end(), ends_name)) {
    return FileRole::Weights;
  }
  return FileRole::Side;
}

}  // namespace ckfs
