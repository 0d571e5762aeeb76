// The cache of huggingface_hub: models--ORG--NAME/{blobs,refs,snapshots}. A snapshot is a directory
// of links into blobs; refs/main names the current one.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/source_store.h"

namespace ckfs {

struct HubSnapshot {
  std::filesystem::path directory;
  std::string repository;               // "org/name"; empty where the directory has another name
  std::vector<std::string> incomplete;  // "blobs/<hash>.incomplete"
};

/// The snapshot that the directory `path` stands for: where `path` is a repository the one that
/// `refs/main` names, or without that file the only one; `path` itself where it is a snapshot.
/// nullopt: `path` is neither. Requires: `path` is as SourceStore::resolve() gives it. Errors:
/// Unsupported (no snapshot, or not clear which), NotFound and Io (of looking at the cache's
/// directories and refs/main).
Result<std::optional<HubSnapshot>> find_hub_snapshot(const std::filesystem::path& path,
                                                     SourceStore& store);

/// "org/name" of "models--org--name/blobs/1.incomplete", a path below a whole cache; empty for any
/// other path. A pure function.
std::string repository_of_blob(std::string_view path);
/// The directory of the repository that `path` is a file of a snapshot in,
/// "models--org--name" of "models--org--name/snapshots/1/model.safetensors"; else empty.
std::string_view repository_directory(std::string_view path);

}  // namespace ckfs
