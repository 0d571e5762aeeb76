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

/// The snapshot that the directory `path` stands for: the one `refs/main` names where `path` is a
/// repository, or `path` itself where it is a snapshot. nullopt: `path` is not in such a cache.
/// Requires: `path` is as SourceStore::resolve() gives it. Errors: Unsupported (no snapshot, or not
/// clear which), those of looking at the cache's
/// directories.
Result<std::optional<HubSnapshot>> find_hub_snapshot(const std::filesystem::path& path,
                                                     SourceStore& store);

}  // namespace ckfs
