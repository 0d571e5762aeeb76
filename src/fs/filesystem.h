// The mounted tree as a read-only filesystem that knows neither tensors nor FUSE: inode numbers in,
// attributes and bytes out.
//
//   /                 one directory per available view, and .ckfs
//   /<view>[@k=v,..]  files of the view; parameterised views appear on lookup
//   /.ckfs            metrics, refused, status.json, views.json: snapshots taken at open
//
// Inode numbers are stable hashes of (canonical view, path); the root is 1. At most 64 unused
// parameterised views are held: the least recently used one without lookups or open files is
// forgotten, and comes back with the same inodes. Those in use may have a bound in bytes
// (OutOfMemory). Safe for concurrent use by several threads. No lock is held while bytes are read
// or computed, except for the text of .ckfs/views.json: one is made at a time.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckfs/checkpoint.h>

#include "api/status.h"
#include "engine/read_stream.h"

namespace ckfs {

using InodeNumber = std::uint64_t;
inline constexpr InodeNumber kRootInode = 1;

struct Attributes {
  InodeNumber inode = 0;
  bool directory = false;
  std::uint32_t permissions = 0;  // the nine bits of rwxrwxrwx
  std::uint64_t size = 0;
  std::int64_t mtime = 0;        // seconds since 1970; also ctime and atime
  std::uint32_t readers = 0444;  // as FileInfo has it
  /// Bytes change from open to open (.ckfs): no page cache, size 0 as in /proc.
  bool volatile_content = false;
};

struct DirectoryEntry {
  std::string name;
  Attributes attributes;
  std::uint64_t next_offset = 0;  // pass it to read the rest
};

struct FilesystemOptions {
  /// mtime of everything; absent: the checkpoint's.
  std::optional<std::int64_t> mtime = {};
  /// Permissions that nothing shows.
  std::uint32_t umask = 022;
  /// The most bytes of parameterised views in use, where other users can look them up.
  std::uint64_t held_bytes = std::numeric_limits<std::uint64_t>::max();
  /// The most bytes of snapshots that are open at once, where there is more than one: any user that
  /// can open one can hold it.
  std::size_t held_snapshots = std::size_t{64} << 20;
  /// For .ckfs/status.json and .ckfs/metrics.
  MountFacts mount = {};
};

struct FilesystemStatistics {
  std::uint64_t bytes = 0;  // sum of the sizes of the files
  std::uint64_t files = 0;
};

class Filesystem {
 public:
  Filesystem(Checkpoint checkpoint, const FilesystemOptions& options);
  ~Filesystem();

  /// Counts as one kernel lookup of the inode: forget() gives it back. A name in the root may build
  /// its view. Errors: NotFound (also where Checkpoint::view gives InvalidArgument or Unsupported:
  /// the reason is in .ckfs/refused), NotDirectory, Corrupt (config.json), OutOfMemory
  /// (held_bytes), Internal. Below a view without parameters, which its first lookup or list()
  /// makes: those of Checkpoint::view as they are, with the reason in .ckfs/refused.
  Result<Attributes> lookup(InodeNumber parent, std::string_view name);
  void forget(InodeNumber inode, std::uint64_t lookups) noexcept;
  Result<Attributes> attributes(InodeNumber inode);

  /// At most `limit` entries from `offset` (0: the beginning), sorted by name, "." and ".." first.
  /// None counts as a lookup. Errors: NotFound, NotDirectory, and those of making the view.
  Result<std::vector<DirectoryEntry>> list(InodeNumber directory, std::uint64_t offset,
                                           std::size_t limit);

  /// Gives a handle for read() and close(). Errors: NotFound, IsDirectory, OutOfMemory (more
  /// snapshots than may be open).
  Result<std::uint64_t> open(InodeNumber inode, StreamOptions options = {});
  /// Short only at the end of the file; empty beyond it. Errors: BadHandle, and those of
  /// ViewFile::read.
  Result<Bytes> read(std::uint64_t handle, std::uint64_t offset, std::size_t size);
  void close(std::uint64_t handle) noexcept;
  /// Handles that are not closed; the kernel keeps one as long as its file is open or mapped.
  std::size_t open_files() const;

  /// user.ckfs.exactness, user.ckfs.source, user.ckfs.view: cut to whole lines where file
  /// systems would take no more. Errors: NoAttribute, NotFound.
  Result<std::string> attribute(InodeNumber inode, std::string_view name);
  Result<std::vector<std::string>> attribute_names(InodeNumber inode);

  /// For the view that `inode` lies in; elsewhere, or where that view cannot be made, for all views
  /// that are held. Errors: Unsupported (they have 2^63 bytes or more).
  Result<FilesystemStatistics> statistics(InodeNumber inode = kRootInode);

  /// Notes that an operation was answered with that errno, for .ckfs/status.json and
  /// .ckfs/metrics.
  void count_error(const char* operation, int number, const Error& error);

  /// Names in the root that the kernel should be asked to forget: parameterised views in use beyond
  /// the 64 that are held, or beyond half of held_bytes. Each is given once after each lookup.
  std::vector<std::string> take_crowded();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckfs
