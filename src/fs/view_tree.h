// A view's flat list of paths as directories with sorted entries.
//
// Immutable once built; safe to share between threads. Names are views into the View's own files.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckfs/checkpoint.h>

#include "base/error.h"

namespace ckfs {

/// A directory's inode number: a hash of its path in the mount, never 0 or 1 (the root).
std::uint64_t directory_inode(std::string_view path);

struct ViewTree {
  struct Entry {
    std::string_view name;
    bool directory = false;
    std::uint32_t index = 0;  // in `directories` or in view.files()
  };
  struct Directory {
    std::string path;  // within the view; empty for the view itself
    std::uint64_t inode = 0;
    std::uint32_t parent = 0;
    std::vector<Entry> entries;  // by name in byte order
  };

  View view;
  std::vector<Directory> directories;  // [0] is the view itself
  std::uint64_t bytes = 0;             // sum of the files' sizes, at most 2^64 - 1
  std::uint64_t memory = 0;            // about what it keeps

  const Entry* find(std::uint32_t directory, std::string_view name) const;
};

/// Errors: Internal (a path is empty, has an empty, "." or ".." part or a NUL, or names a file and
/// a directory at once), which is a bug in the layer above.
Result<std::shared_ptr<const ViewTree>> build_tree(View view);

}  // namespace ckfs
