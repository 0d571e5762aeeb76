// The folders that a pipeline's own list names: those of diffusers are the keys of
// model_index.json, those of sentence-transformers the paths in modules.json, beside the types of
// their modules.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ckfs {

/// Types of modules by folder ("unet/"); an empty type: the list does not say it.
using PipelineFolders = std::map<std::string, std::string, std::less<>>;

/// Adds the folders of a text of model_index.json, but those that are left out there. Errors:
/// Corrupt.
Result<void> add_model_index(const std::string& text, PipelineFolders& folders);

/// Adds the folders of a text of modules.json. Errors: Corrupt.
Result<void> add_modules(const std::string& text, PipelineFolders& folders);

/// Whether modules of this type of sentence-transformers ("sentence_transformers.models.Dense")
/// have weights; nullopt: not known.
std::optional<bool> module_has_weights(std::string_view type);

/// The folder of whose model.safetensors the mark of an unfinished download is; nullopt: of another
/// file, or not known. huggingface_hub keeps the repository's folders within its own, and begins
/// the mark's name with the file's, or with the SHA-1 of "model.safetensors.metadata" in base 64.
std::optional<std::string_view> folder_of_mark(std::string_view mark);

}  // namespace ckfs
