// The role of a file in a Hugging Face model directory, by its name alone. A pure function.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckfs {

enum class FileRole : std::uint8_t {
  Config,         // config.json: shown edited
  Weights,        // of any kind: shown only in converted form
  Adapter,        // weights of their own beside a model's: a LoRA
  AdapterConfig,  // adapter_config.json: shown only with an adapter
  Index,          // over weights: a view makes its own
  Quantization,   // settings of a quantization that a converted view no longer has
  Hidden,         // in folders of tools (.git, .cache, __pycache__); *.incomplete, *.lock
  Side,           // everything else: shown verbatim
};

/// `path` is relative to the model directory.
FileRole role_of(std::string_view path);

/// Which adapters of a tree views show, by path: of two of one name in two formats the safetensors
/// file, which loaders prefer. `paths`: of all its files.
std::vector<std::string> shown_adapters(const std::vector<std::string_view>& paths);

/// Whether `path` lies in a directory at the top that holds the same weights in another format.
bool is_of_another_format(std::string_view path);

}  // namespace ckfs
