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
  /// DeepSpeed and universal checkpoints: the tag; empty: the one that `latest` names.
  std::string tag = {};
  /// torch files, DCP and Orbax trees: the key (or keys, joined by '.') that holds the tensors;
  /// empty: the top level, or, of torch files and DCP, the one of the usual keys that is there.
  std::string key = {};
  /// Orbax: the item of a step, by name; empty: the one of arrays.
  std::string item = {};
  /// Orbax: the step of a directory of steps; nullopt: the newest.
  std::optional<std::uint64_t> step = {};
  /// A directory with config.json, tokenizer and the like, for sources that have none beside them.
  std::optional<std::filesystem::path> config = {};
};

/// Finds out what kind of checkpoint `path` is (a directory or a file) and reads its headers, never
/// its tensor data, but for the first bytes of what is as small as a pointer of Git-LFS. Registers
/// every file it shows with `files`. Errors: NotFound, Corrupt,
/// Unsupported, Io, Stale, OutOfMemory; each message begins with the file that is at fault;
/// InvalidArgument where `options` name something that the source has not.
Result<std::shared_ptr<const Catalog>> open_checkpoint(const std::filesystem::path& path,
                                                       SourceFiles& files,
                                                       const OpenCheckpointOptions& options = {});

}  // namespace ckfs
