// Where source files are: all that ckfs asks of directories, links and names, behind an interface,
// so that tests, and stores of other machines, can take the disk's place. Adapters touch
// the file system through one and in no other way (tests/lint/layers).
// SourceFiles (source_files.h) reads in bulk.
//
// A store whose files the system knows is an OpenStore, too: it gives descriptors, which a Reader
// (reader.h) reads from.
//
// Safe for concurrent use by several threads. Each call is a few operations of the source: whoever
// has many to ask does it from several threads (base/parallel.h). Errors are errnos: the callers
// know what the thing is called.
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

  /// The entries of `directory`, "." and ".." not among them, by name. Fails as a whole where the
  /// kind of one cannot be found out; one that is removed meanwhile is left out.
  virtual Tried<std::vector<StoreEntry>> list(const std::filesystem::path& directory) = 0;

  /// What is at `path`, links followed, without opening it.
  virtual Tried<FileStatus> look(const std::filesystem::path& path) = 0;

  /// The absolute path without ".", ".." and links of what is at `path`.
  virtual Tried<std::filesystem::path> resolve(const std::filesystem::path& path) = 0;

  /// What the link at `path` says, as it is written there.
  virtual Tried<std::filesystem::path> link_target(const std::filesystem::path& path) = 0;

  /// The first bytes of a file, `count` or as many as there are or can be read; none where it
  /// cannot be opened: registering it (SourceFiles::add) says why.
  virtual std::vector<std::byte> first_bytes(const std::filesystem::path& path,
                                             std::size_t count) = 0;
};

class OpenStore : public SourceStore {
 public:
  using SourceStore::look;

  /// A descriptor to read from; never waits for what is no file (a FIFO's writer), but opening a
  /// device has effects: look() first where a name may be one.
  virtual Tried<UniqueFd> open(const std::filesystem::path& path) = 0;

  /// What look() gives, of an open file.
  virtual Tried<FileStatus> look(int fd) = 0;

  std::vector<std::byte> first_bytes(const std::filesystem::path& path, std::size_t count) override;
};

/// The files of this machine.
std::unique_ptr<OpenStore> make_local_store();

}  // namespace ckfs
