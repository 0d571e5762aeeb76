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

/// `path` from the root, without ".", ".." and a slash at its end, as the kernel walks it, except
/// that ".." behind a file is the file's directory. Behind a symbolic link ".." is the parent of
/// the link's target, so the part before a ".." is resolved. Other links stay, because a dead mount
/// cannot be resolved. Errors: NotFound, Io (of the resolved part or the current directory; also
/// for an empty path).
Result<std::filesystem::path> absolute_path(const std::filesystem::path& path);

}  // namespace ckfs
