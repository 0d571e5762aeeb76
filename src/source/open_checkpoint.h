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
  /// Orbax and FSDP ranks: the step of a directory of steps; nullopt: the newest that is whole, or
  /// the one that the run names. Megatron: the iteration of a run; nullopt: the one that its
  /// tracker file names, else the only one.
  std::optional<std::uint64_t> step = {};
  /// A directory with config.json, tokenizer and the like, a model of the hub (find_source()), or a
  /// config.json alone, instead of the files beside the source. Not for safetensors.
  std::optional<std::filesystem::path> config = {};
};

/// Finds out what kind of checkpoint `path` is (a directory or a file) and reads its headers. Reads
/// no tensor data, except small tensors that say how others are quantized, arrays within Orbax's
/// headers (`checkpoint`, nodes of a database), and the first bytes of a file that may be torch's
/// or is as small as a Git-LFS pointer. Registers every file it shows with `files`. Errors:
/// NotFound, Corrupt, Unsupported, Io, Stale, OutOfMemory; each message but OutOfMemory's begins
/// with the file at fault, or with the tensor, array or tag. InvalidArgument: `options` name
/// something that the source or its kind does not have, or a file is no longer a regular one.
/// Allocations of the calling thread may throw std::bad_alloc.
Result<std::shared_ptr<const Catalog>> open_checkpoint(const std::filesystem::path& path,
                                                       SourceFiles& files,
                                                       const OpenCheckpointOptions& options = {});

}  // namespace ckfs
