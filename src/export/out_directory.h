// The directory that an export writes. All system calls of src/export are here, relative to one
// descriptor of OUT, so that an OUT that is renamed during the export does no harm elsewhere.
//
// No path below OUT is followed through a symbolic link, neither to write nor to remove: a link in
// the place of a directory is an error (beneath.h). Paths are is_inner_path().
//
// Safe for concurrent use by several threads, as long as one thread writes each path.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unistd.h>
#include <vector>

#include "base/byte_range.h"
#include "base/error.h"
#include "base/unique_fd.h"
#include "export/beneath.h"

namespace ckfs {

/// How the kernel is called. Other values are for tests.
struct OutSystem {
  PathWalk walk = PathWalk::Kernel;
  std::function<int(int descriptor)> sync_directory = ::fsync;
  bool keeps_marks = true;  // false: as a file system without extended attributes
  /// Called before each system call that changes something. Its result is the errno with which the
  /// call fails instead (a write after half of its bytes); 0: the call is made. Not called by
  /// OutDirectory::open(), nor to reserve room, make a nameless file, set a mode or a directory's
  /// time.
  std::function<int()> fault = {};

  int next_fault() const { return fault ? fault() : 0; }
};

/// A file being written under its temporary name.
class OutFile {
 public:
  OutFile(std::string thing, UniqueFd fd, std::shared_ptr<const OutSystem> system)
      : thing_(std::move(thing)), fd_(std::move(fd)), system_(std::move(system)) {}

  /// Reserves disk for `range` without growing the file, where the file system can. Errors: Io
  /// (ENOSPC, EDQUOT).
  Result<void> reserve(ByteRange range);
  /// Gives back the disk of `range`. A hint.
  void release(ByteRange range);
  /// Writes all of `bytes`. An export of a terabyte must not evict everything else from the page
  /// cache: where kernel and file system can, the bytes leave it when they are on disk
  /// (RWF_DONTCACHE, 6.14); elsewhere sync() drops them.
  Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Asks the kernel to begin writing these bytes to disk. A hint.
  void start_writeback(std::uint64_t offset, std::uint64_t size);
  /// Everything written so far survives a power failure afterwards, and has left the page cache.
  Result<void> sync();
  /// Makes the file `size` bytes long, shorter or longer. Gives back disk that is reserved behind
  /// it.
  Result<void> truncate(std::uint64_t size);
  Result<void> set_mtime(std::int64_t seconds);
  /// Its name in messages.
  const std::string& thing() const { return thing_; }

 private:
  friend class OutDirectory;

  std::string thing_;
  UniqueFd fd_;
  std::shared_ptr<const OutSystem> system_;
  bool uncached_ = true;  // as far as known
};

/// The thing at a path.
struct OutEntry {
  bool regular = false;
  std::uint64_t size = 0;
  std::uint64_t allocated = 0;  // bytes of disk
  std::int64_t mtime = 0;       // seconds
};

/// Which other processes may write to OUT at the same time.
enum class Others : bool { No, OfOneFleet };

/// The mode of a copy of a file that `readers` (bits of 0444) may read: they may also write it,
/// less the umask. Other users get no copy.
constexpr unsigned mode_of_copy(std::uint32_t readers) {
  return readers | readers >> 1;
}

class OutDirectory {
 public:
  /// Opens `path`; makes it and its parents where they are missing. Locks it against other exports
  /// (processes of one fleet share the lock), as far as its file system has locks: NFS and FUSE
  /// have no locks of directories between hosts. Links in `path` itself are followed.
  ///
  /// distrust() accepts directories that are made, here and below, from their first moment on,
  /// whatever group a set-group-ID directory gives them: the umask decides for the caller's own
  /// group alone. (Not where a file system has one mode for all.) It accepts files, too, unless the
  /// umask or a default ACL lets all users write. Errors: InvalidArgument (not a directory; locked
  /// by another export), NotFound (a link that leads nowhere), Io.
  static Result<OutDirectory> open(const std::filesystem::path& path, OutSystem system = {},
                                   Others others = Others::No);

  const std::string& name() const { return name_; }

  /// The thing at a path. nullopt: nothing is there, or it cannot be reached.
  std::optional<OutEntry> entry(const std::string& path) const;
  /// The reason why another user may have made or changed the thing at `path` ("" is OUT). nullopt:
  /// nothing is there; or it belongs to the caller or to root, and only the caller's own group may
  /// write to it, too, by its mode and its POSIX ACL. Other kinds of ACLs (NFS 4) are not seen,
  /// only the mode that they give.
  std::optional<std::string> distrust(const std::string& path) const;
  /// The path, relative to OUT, of the first thing that `known` refuses. Directories are not asked
  /// about.
  Result<std::optional<std::string>> find_foreign(
      const std::function<bool(const std::string& path)>& known) const;
  std::optional<std::uint64_t> free_bytes() const;

  /// Makes the directories above `path`.
  Result<void> make_parents(const std::string& path) const;
  /// Makes a new, empty file; removes a file or link of that name. Its rights are `mode` less the
  /// umask, or the rights of `mode` that a default ACL of its directory leaves. The group never has
  /// more, not for a moment:
  ///   - With a default ACL the caller's own group may not write. Another group may write only
  ///     where all users may.
  ///   - Another group than the caller's own, as a set-group-ID directory gives, may write only
  ///     where all users may. Where `mode` gives the group and others different rights, it gets no
  ///     more than others.
  ///   - Where the kernel does not show the umask, or the file system gives no rights, the group
  ///     gets no more than others.
  Result<OutFile> create(const std::string& path, unsigned mode = 0666) const;
  /// Opens an existing regular file. Errors: NotFound, InvalidArgument (a symbolic link, a device,
  /// a FIFO with a reader), Io (also a directory, a FIFO without a reader).
  Result<OutFile> reopen(const std::string& path) const;
  /// Opens a regular file, or makes it. Several processes may do so at once: all get the same file.
  Result<OutFile> open_shared(const std::string& path, unsigned mode = 0666) const;
  /// Whether `path` is still that file. False if it was removed since it was opened, or, on file
  /// systems whose files keep their inode numbers, replaced.
  bool is_at(const std::string& path, const OutFile& file) const;
  /// Opens a file, makes it if it is missing, and locks it. The lock ends with the descriptor. An
  /// empty descriptor: another process holds the lock. Where a file system has no locks, the file
  /// is opened only.
  Result<UniqueFd> lock(const std::string& path) const;
  /// The names in `directory` ("" is OUT), in no order.
  Result<std::vector<std::string>> names(const std::string& directory) const;
  Result<void> rename(const std::string& from, const std::string& to) const;
  /// Makes a file without a name in the directory of `path`. Errors: Io (also where the file system
  /// has no such files).
  Result<UniqueFd> open_nameless(const std::string& path) const;
  /// Removes a file; no error where there is none.
  Result<void> remove(const std::string& path) const;
  /// Removes a directory. No error where there is none, or where something is in it.
  Result<void> remove_directory(const std::string& path) const;
  /// Removes the directories above `files` that are empty. Those that cannot be removed stay.
  void remove_empty_parents(const std::vector<std::string>& files) const;
  /// The entries of `directory` ("" is OUT) survive a power failure afterwards. A file system that
  /// cannot promise that (EINVAL, ENOTSUP) is logged once; that is not an error.
  Result<void> sync_directory(const std::string& directory) const;
  void set_directory_mtime(const std::string& directory, std::int64_t seconds) const;

  /// The bytes of a regular file. nullopt: nothing is there. Errors: InvalidArgument (not a regular
  /// file, or longer than `limit`), Io.
  Result<std::optional<std::string>> read_text(const std::string& path, std::size_t limit) const;
  /// Replaces a file. At any time it has the old text or the new one, also where another process
  /// replaces it at the same time.
  Result<void> replace_text(const std::string& path, const std::string& text) const;
  /// Makes a file of that text where there is none. False: something has that name. Of several
  /// callers, on any hosts, one gets true: the name is a link, which also old NFS servers make
  /// once.
  Result<bool> put_text(const std::string& path, const std::string& text) const;

  /// The mark (the extended attribute user.ckfs.export) of a regular file or a directory; "" is
  /// OUT. nullopt: it has none, or it cannot be read.
  std::optional<std::string> mark(const std::string& path) const;
  /// Gives a file, or OUT, a mark. False: the file system keeps none.
  Result<bool> set_mark(const std::string& path, const std::string& text) const;
  /// Takes OUT's own mark away for good; no error where it has none.
  Result<void> remove_mark() const;

 private:
  /// A path's last name, and the open directory to look it up in.
  struct LastName {
    UniqueFd directory;
    std::string name;
  };

  OutDirectory(std::string name, UniqueFd fd, OutSystem system, Others others)
      : name_(std::move(name)),
        fd_(std::move(fd)),
        others_(others),
        system_(std::make_shared<OutSystem>(std::move(system))) {}
  std::string thing(const std::string& path) const {
    return path.empty() ? name_ : name_ + "/" + path;
  }
  Failure failure(int error, const std::string& path, std::string_view what) const;
  Result<void> write_text(const std::string& path, const std::string& text) const;
  std::string temporary_name(const std::string& path) const;
  Result<UniqueFd> open_at(const std::string& path, int flags, unsigned mode = 0666) const;
  UniqueFd open_to_mark(const std::string& path) const;
  Result<LastName> last_name(const std::string& path, std::string_view what) const;

  std::string name_;
  UniqueFd fd_;
  Others others_;
  std::shared_ptr<const OutSystem> system_;
  /// Whether a directory that cannot be synced was logged. Behind a pointer, to be movable.
  std::unique_ptr<std::atomic<bool>> unsynced_ = std::make_unique<std::atomic<bool>>(false);
};

}  // namespace ckfs
