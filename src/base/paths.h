// Paths as names alone: nothing here asks a file system.
#pragma once

#include <algorithm>
#include <filesystem>

namespace ckfs {

/// Whether `inner` is `outer` or lies in it. Requires: both are canonical.
inline bool lies_within(const std::filesystem::path& inner, const std::filesystem::path& outer) {
  return std::ranges::mismatch(outer, inner).in1 == outer.end();
}

}  // namespace ckfs
