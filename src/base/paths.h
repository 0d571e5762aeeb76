// Paths of this machine's file systems.
#pragma once

#include <algorithm>
#include <filesystem>

#include "base/error.h"

namespace ckfs {

/// Whether `inner` is `outer` or lies in it, by their names alone. Requires: both are canonical.
inline bool lies_within(const std::filesystem::path& inner, const std::filesystem::path& outer) {
  return std::ranges::mismatch(outer, inner).in1 == outer.end();
}

/// `path` from the root, without ".", ".." and a slash at its end, as the kernel walks it (but that
/// ".." behind a file is its directory): behind a symbolic link ".." is the parent of what it leads
/// to, so what stands before a ".." is resolved. Other links stay: a dead mount cannot be resolved.
/// Errors: NotFound, Io (of what is resolved, and of the current directory; an empty path, too).
Result<std::filesystem::path> absolute_path(const std::filesystem::path& path);

}  // namespace ckfs
