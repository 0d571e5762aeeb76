// Directories below a directory that others may write to: reached without ever leaving it, whatever
// symbolic links somebody puts in the way, and whenever.
//
// Everything else is done by one name relative to such a directory, without following a link there.
#pragma once

#include <string>

#include "base/unique_fd.h"

namespace ckfs {

/// The directory of a path; "" for a path of one name.
std::string parent_of(const std::string& path);

/// How a path is walked. Kernel: by openat2(2) in one call, or by components where the kernel has
/// no openat2 or a sandbox forbids it. Components: one openat(2) for each.
enum class Walk : bool { Kernel, Components };

/// Opens the directory at `path` below `top` ("" is `top` itself), where no part of the path is a
/// symbolic link. An empty descriptor where that fails, with errno: ELOOP where a part is a
/// symbolic link. Requires: `path` is empty or is_inner_path().
UniqueFd open_directory_beneath(int top, const std::string& path, Walk walk = Walk::Kernel);

}  // namespace ckfs
