// Folders of a Hugging Face directory that hold weights of their own: modules of
// sentence-transformers, components of a diffusers pipeline, adapters beside a base. By names
// alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "source/source_tree.h"

namespace ckfs {

/// The folders ("2_Dense/"), at any depth and by path, that have *.safetensors directly in them, or
/// links of such names that lead to no file. Not those of another format's weights (original/,
/// onnx/, files named consolidated*) and hidden ones.
std::vector<std::string> weight_folders(const SourceTree& tree);

/// Whether the directory is a model by its folders: a pipeline of diffusers (model_index.json),
/// beside whose folders the same weights may lie a second time in one file of any kind, or of
/// sentence-transformers (modules.json) without weights at its top, which would be the base model.
bool is_pipeline(const SourceTree& tree);

/// The files that lie directly in `folder`, which ends with '/', as a tree of their own.
SourceTree tree_of(const SourceTree& tree, const std::string& folder);

}  // namespace ckfs
