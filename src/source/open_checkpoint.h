// From a path to a Catalog: the one registry of checkpoint kinds.
#pragma once

#include <filesystem>
#include <memory>

#include "base/error.h"
#include "io/source_files.h"
#include "source/catalog.h"

namespace ckfs {

/// Finds out what kind of checkpoint `path` is (a directory or a file) and reads its headers, never
/// its tensor data. Registers every file it shows with `files`. Errors: NotFound, Corrupt,
/// Unsupported, Io; each message begins with the file that is at fault.
Result<std::shared_ptr<const Catalog>> open_checkpoint(const std::filesystem::path& path,
                                                       SourceFiles& files);

}  // namespace ckfs
