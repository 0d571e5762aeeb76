// Opens directories below a directory that other users may write to. The walk never leaves that
// directory, whatever symbolic links are put in its way while it runs.
//
// Callers then use one name relative to the directory, without following a link there.
#pragma once

#include <string>

#include "base/unique_fd.h"

namespace ckfs {

/// The directory of a path; "" for a path of one name.
std::string parent_of(const std::string& path);

/// How a path is walked. Kernel: by one openat2(2), or by components where the kernel has no
/// openat2 or a sandbox forbids it. Components: by one openat(2) for each.
enum class PathWalk : bool { Kernel, Components };

/// Opens the directory at `path` below `top` ("" is `top` itself). On failure the descriptor is
/// empty and errno is set: to ELOOP where a part of the path is a symbolic link. Requires: `path`
/// is empty or is_inner_path().
UniqueFd open_directory_beneath(int top, const std::string& path, PathWalk walk = PathWalk::Kernel);

}  // namespace ckfs
