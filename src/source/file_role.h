// What a file of a Hugging Face model directory is, by its name alone. A pure function.
#pragma once

#include <cstdint>
#include <string_view>

namespace ckfs {

enum class FileRole : std::uint8_t {
  Config,        // config.json: shown edited
  Weights,       // of any kind: shown only as what they become
  Index,         // over weights: a view makes its own
  Quantization,  // settings of a quantization that a converted view no longer has
  Hidden,        // in folders of tools (.git, .cache, __pycache__); *.incomplete, *.lock
  Side,          // everything else: shown verbatim
};

/// `path` is relative to the model directory.
FileRole role_of(std::string_view path);

/// Whether `path` lies in a directory at the top that holds the same weights in another format.
bool is_of_another_format(std::string_view path);

}  // namespace ckfs
