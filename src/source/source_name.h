// Names of sources that are not paths: a model of the hub (`org/name`), or a URL.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "io/source_store.h"

namespace ckfs {

/// The value of an environment variable; nullptr: it is not set.
using Variable = std::function<const char*(const char* name)>;

/// The directory in which huggingface_hub keeps its downloads, found as it finds it: HF_HUB_CACHE,
/// HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub,
/// ~/.cache/huggingface/hub. Empty where no variable says so much as the user's home.
std::filesystem::path hub_cache_directory(const Variable& variable = ::getenv);

/// The path that `source` means. A path that exists, or that cannot be looked at, means itself.
/// Otherwise `source` may be a name of the hub, `org/name` or `org/name@REVISION` (with or without
/// `hf://` before it): it means that model's directory in the hub's cache, or the snapshot of that
/// revision (a branch, a tag, a commit or the first letters of one). Nothing is downloaded.
/// Errors: NotFound (absent; the message says where it was looked for, and what downloads it),
/// InvalidArgument (a URL, which `store` does not know; the message says what to do instead),
/// Unsupported (several snapshots begin with REVISION), Io.
Result<std::filesystem::path> find_source(const std::filesystem::path& source, SourceStore& store,
                                          const Variable& variable = ::getenv);

}  // namespace ckfs
