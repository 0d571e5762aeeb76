// What lies at the path a user gave: a file, or the files of a directory, found by listing alone.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "catalog/catalog.h"

namespace ckfs {

/// Files of a checkpoint that are listed; more is no checkpoint but somebody's disk.
inline constexpr std::size_t kMaxSourceFiles = 100'000;
inline constexpr int kMaxSourceDepth = 32;  // nested directories

/// What `ckfs export` writes of itself at the top of what it makes; no part of a checkpoint.
inline constexpr std::string_view kExportRecord = ".ckfs-export.json";

struct TreeFile {
  std::string path;                // relative, with '/'; the link's name where it is a link
  std::filesystem::path location;  // where to open it
};

struct SourceTree {
  std::string name;  // what messages call the whole: as the user wrote it
  bool single_file = false;
  std::filesystem::path root;         // the directory listed, or the one that holds the single file
  std::vector<TreeFile> files;        // regular files, and links to such; by path
  std::vector<std::string> dangling;  // links that lead to no file; by path
  std::vector<std::string>
      incomplete;           // downloads that were not finished; relative or of the cache
  std::vector<Note> notes;  // what was passed over, and why
  /// The command that completes the download, where one can be named; else empty.
  std::string complete_command;

  /// nullptr: there is none. `path` as in TreeFile.
  const TreeFile* find(std::string_view path) const;
};

/// The first bytes of a file, `count` or as many as there are; to tell its format before it is
/// registered anywhere. Nothing where it cannot be read: registering it says why.
std::vector<std::byte> first_bytes(const TreeFile& file, std::size_t count);

/// Whether a Git repository holds the file with LFS, and only the pointer to it is here.
bool is_lfs_pointer(const TreeFile& file);
/// The message on such a file that is needed. Unsupported.
[[nodiscard]] Failure refuse_lfs_pointer(std::string_view path);

/// Lists `path`: a file, a directory, a hub cache repository (hub_cache.h), or a snapshot in one.
/// Symbolic links to files are followed, those to directories are not. Errors: NotFound, Io,
/// Unsupported (too many files; a repository without a snapshot; neither file nor directory).
Result<SourceTree> list_source(const std::filesystem::path& path);

}  // namespace ckfs
