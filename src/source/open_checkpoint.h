// From a path to a Catalog.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "catalog/catalog.h"
#include "io/source_files.h"

namespace ckfs {

/// What the caller chooses where a source leaves a choice.
struct OpenCheckpointOptions {
  /// DeepSpeed and universal checkpoints: the tag; empty: the directory itself where it is one,
  /// else the one that `latest` (`latest_universal`) names, else the only one.
  std::string tag = {};
  /// torch files, DCP and Orbax trees: the key (or keys, joined by '.') that holds the tensors;
  /// empty: the top level, or, of torch files and DCP, the one of the usual keys that is there.
  std::string key = {};
  /// Orbax: the item of a step, by name; empty: the step itself where it is one, else the only one,
  /// else the first of the usual names.
  std::string item = {};
  /// Orbax: the step of a directory of steps; nullopt: the newest that is whole.
  std::optional<std::uint64_t> step = {};
  /// A directory with config.json, tokenizer and the like, a model of the hub (find_source()), or a
  /// config.json alone, instead of what lies beside the source. Not of safetensors.
  std::optional<std::filesystem::path> config = {};
};

/// Finds out what kind of checkpoint `path` is (a directory or a file) and reads its headers, never
/// its tensor data, but for small tensors that say how others are quantized, for arrays within what
/// Orbax has for headers (`checkpoint`, nodes of a database), and for the first bytes of what may
/// be a torch file, or is as small as a pointer of Git-LFS. Registers every file it shows with
/// `files`. Errors: NotFound, Corrupt, Unsupported, Io, Stale, OutOfMemory; each message but
/// OutOfMemory's begins with the file that is at fault, or with the tensor, array or tag;
/// InvalidArgument where `options` name something that the source or its kind has not, or a file is
/// no regular one any more. What the calling thread makes may throw std::bad_alloc.
Result<std::shared_ptr<const Catalog>> open_checkpoint(const std::filesystem::path& path,
                                                       SourceFiles& files,
                                                       const OpenCheckpointOptions& options = {});

}  // namespace ckfs
