// The source at a user's path: a file, or the files of a directory, found by listing alone.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "catalog/catalog.h"
#include "io/source_files.h"

namespace ckfs {

inline constexpr int kMaxSourceDepth = 32;  // nested directories

/// The directory of `ckfs export`'s own records at the top of its output. It is not part of a
/// checkpoint, and no view may name it.
inline constexpr std::string_view kExportFolder = ".ckfs-export.d";
/// Where `hf download --local-dir` keeps its records, beside the files of a model.
inline constexpr std::string_view kDownloadFolder = ".cache/huggingface";

struct TreeFile {
  std::string path;      // relative, with '/'; the link's name where it is a link
  bool is_link = false;  // or is only known by the name that the user gave
};

/// Takes memory in proportion to the names of its files, and has no other limit.
struct SourceTree {
  std::string name;  // what messages call the whole: as the user wrote it
  bool single_file = false;
  /// The directory listed, or the one that holds the single file; as SourceStore::resolve() has it.
  std::filesystem::path root;
  std::vector<TreeFile> files;  // regular files, and links to such; by path
  /// Links whose target is absent, out of reach, or neither file nor directory; by path.
  std::vector<std::string> dangling;
  /// Downloads that were not finished, relative or of the cache; by path.
  std::vector<std::string> incomplete;
  /// Of a part: whether the whole has any, of whatever file (the hub's cache does not say which).
  bool whole_is_incomplete = false;
  /// Skipped entries with the reasons; and the first of outside_links, which is among the files.
  std::vector<Note> notes;
  /// Files that are links out of it, "3, the first of them a.json -> /etc/b.json"; empty: none.
  std::string outside_links;
  /// The command that completes the download, where one can be named; else empty.
  std::string complete_command;

  /// nullptr: there is none. `path` as in TreeFile.
  const TreeFile* find(std::string_view path) const;
  /// Where `file` is opened.
  std::filesystem::path location(const TreeFile& file) const { return root / file.path; }
};

/// Subject of the fact (Catalog::facts) that files are links out of the checkpoint.
inline constexpr std::string_view kOutsideLinks = "links out of the checkpoint";

/// The directory that links in `directory` may lead into and still be its own files: itself, or the
/// repository of the hub cache that it is a snapshot of. Requires and errors: as
/// find_hub_snapshot().
Result<std::filesystem::path> link_boundary(const std::filesystem::path& directory,
                                            SourceStore& store);
/// Whether `path` is `directory` or lies in it; both canonical.
bool lies_in(const std::filesystem::path& path, const std::filesystem::path& directory);

/// The files that `wanted` accepts and that Git-LFS holds, so that only a pointer to each is here;
/// by path; none where there is no memory to look. It looks at their sizes, and into small ones.
std::vector<const TreeFile*> find_lfs_pointers(const SourceTree& tree, const SourceFiles& files,
                                               const std::function<bool(const TreeFile&)>& wanted);
/// The message on such a file that is needed. Unsupported.
[[nodiscard]] Failure refuse_lfs_pointer(std::string_view path);

/// The end of a message on a missing file: how to complete the download, or nothing.
std::string download_hint(const SourceTree& tree);
/// The message on a source that is refused because of its unfinished download. Unsupported.
/// Requires: it has one.
[[nodiscard]] Failure refuse_unfinished(const SourceTree& tree);

/// The message on a link of the tree that leads to no file and is needed. NotFound.
[[nodiscard]] Failure refuse_dangling(const SourceTree& tree, const std::string& path,
                                      const SourceFiles& files);
/// The message on slices that ckfs does not join, `path` among them. `what` as find_slices() has
/// it. Unsupported.
[[nodiscard]] Failure refuse_slices(std::string_view path, std::string_view what);
/// Errors: Unsupported: the one file of the tree is such a slice, by its name and those beside it.
Result<void> refuse_slice(const SourceTree& tree, const SourceFiles& files);

/// Whether a file of this size can be a pointer of Git-LFS.
bool has_lfs_pointer_size(std::uint64_t size);

/// Lists what `source` means (find_source()): a file, a directory, a hub cache repository
/// (hub_cache.h), or a snapshot in one.
/// Symbolic links to files are followed, those to directories are not. All of it must be there to
/// be seen: a directory that cannot be listed or looked at is an error, whatever it is called, for
/// chunks of an array may be in it (but the one that an export keeps at the top, which is not
/// looked into). Directories of other file systems are passed over, with a note, and so are those
/// that are gone by then. Errors: NotFound, Io, OutOfMemory, Unsupported (nested too deep; a
/// repository without a snapshot, or not clear which; neither file nor directory), and those of
/// find_source().
Result<SourceTree> list_source(const std::filesystem::path& source, const SourceFiles& files);

/// The regular files, and links to such, directly in `directory` whose names `wanted` accepts; by
/// name. `shown` is what messages call it. Errors: NotFound, Io, OutOfMemory.
Result<std::vector<TreeFile>> list_files(const std::filesystem::path& directory,
                                         const std::string& shown, const SourceFiles& files,
                                         const std::function<bool(std::string_view)>& wanted);

}  // namespace ckfs
