// The interface to the place of source files: all that ckfs asks of directories, links and names.
// Tests, and stores of other machines, can take the disk's place. Adapters touch the file system
// only through it (tests/lint/layers). SourceFiles (source_files.h) reads in bulk.
//
// A store whose files the system knows is an OpenStore, too: it gives descriptors, which a Reader
// (reader.h) reads from.
//
// Safe for concurrent use by several threads. Each call is a few operations of the source: a caller
// with many calls makes them from several threads (base/parallel.h). Errors are errnos: the callers
// know the name of the thing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "base/unique_fd.h"
#include "io/fingerprint.h"

namespace ckfs {

template <typename T>
using Tried = tl::expected<T, int>;

/// Whether an error says that there is nothing of the name.
bool is_absent(int error);
/// The same, or that links lead in a circle or to where the user may not look.
bool is_out_of_reach(int error);

enum class FileKind : std::uint8_t { File, Directory, Link, Other };

/// A name in a directory. Links are not followed.
struct StoreEntry {
  std::string name;
  FileKind kind = FileKind::Other;
};

struct FileStatus {
  FileKind kind = FileKind::Other;
  Fingerprint fingerprint;
  /// Names that the file has; 0: it was deleted, and lives until its last descriptor is closed.
  std::uint64_t names = 1;
};

class SourceStore {
 public:
  virtual ~SourceStore() = default;

  /// The entries of `directory` by name, without "." and "..". Fails as a whole where the kind of
  /// one cannot be found out; leaves out an entry that is removed in between.
  virtual Tried<std::vector<StoreEntry>> list(const std::filesystem::path& directory) = 0;

  /// Looks at `path`, links followed, without opening it.
  virtual Tried<FileStatus> look(const std::filesystem::path& path) = 0;

  /// The absolute path of the file or directory at `path`, without ".", ".." and links.
  virtual Tried<std::filesystem::path> resolve(const std::filesystem::path& path) = 0;

  /// The target of the link at `path`, as it is written there.
  virtual Tried<std::filesystem::path> link_target(const std::filesystem::path& path) = 0;

  /// The first bytes of a file, `count` or as many as there are or can be read; none where it
  /// cannot be opened: registering it (SourceFiles::add) says why.
  virtual std::vector<std::byte> first_bytes(const std::filesystem::path& path,
                                             std::size_t count) = 0;
};

class OpenStore : public SourceStore {
 public:
  using SourceStore::look;

  /// A descriptor to read from. Never waits where `path` is not a file (a FIFO's writer). But
  /// opening a device has effects: look() first where a name may be one.
  virtual Tried<UniqueFd> open(const std::filesystem::path& path) = 0;

  /// Looks at an open file, as the other look() does at a path.
  virtual Tried<FileStatus> look(int fd) = 0;

  std::vector<std::byte> first_bytes(const std::filesystem::path& path, std::size_t count) override;
};

/// The files of this machine.
std::unique_ptr<OpenStore> make_local_store();

}  // namespace ckfs
