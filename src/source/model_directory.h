// Where a training checkpoint's config.json and tokenizer are, and what a view shows of them.
#pragma once

#include <filesystem>
#include <optional>

#include "base/error.h"
#include "catalog/catalog.h"
#include "io/source_files.h"
#include "source/file_table.h"
#include "source/open_checkpoint.h"
#include "source/source_tree.h"

namespace ckfs {

/// Looks for config.json in the directory that `options` name (or takes the file that they name for
/// it), else at the top of the tree, else in `beside`. Where there is one, the files there that
/// belong to a model are its side files (none of those beside a file that `options` name); where
/// there is none, the result is empty. Quantization that config.json records becomes an obstacle of
/// `builder`, for what a training checkpoint stores is not decoded; a note where all matrices of
/// `builder` are plain floats. Requires: `table` is that of `tree`, `builder` has all tensors.
/// Errors: NotFound (options.config is not there, or has no config.json), Corrupt, Unsupported (too
/// many files or bytes), Io, Stale, and those of SourceFiles::add() and link_boundary().
Result<ModelDirectory> find_model_directory(
    const SourceTree& tree, const FileTable& table, SourceFiles& files, CatalogBuilder& builder,
    const OpenCheckpointOptions& options,
    const std::optional<std::filesystem::path>& beside = std::nullopt);

/// The directory that holds the tree's root: `beside` of a tree that is itself only a part of a
/// checkpoint (a tag, a framework's folder).
std::filesystem::path directory_above(const SourceTree& tree);

}  // namespace ckfs
