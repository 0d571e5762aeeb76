// A converted view must hold the model once. Loaders pick weights by name, each in its own order of
// preference, so old formats beside the safetensors (pytorch_model.bin, consolidated.*, original/,
// GGUF) would be loaded instead of the view's. The lists here say what counts as weights; what no
// list names is shown as it is, because remote code and tokenizers have names of every kind.
#include "source/file_role.h"

#include <algorithm>
#include <array>

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

}  // namespace

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
  if (name.starts_with("consolidated") ||
      std::any_of(kWeightEndings.begin(), kWeightEndings.end(), ends_name)) {
    return FileRole::Weights;
  }
  return FileRole::Side;
}

}  // namespace ckfs
