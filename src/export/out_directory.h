// The directory that an export writes: all system calls of src/export, relative to one descriptor
// of OUT, so that nothing else is touched if somebody renames OUT meanwhile.
//
// No path below OUT is followed through a symbolic link, neither to write nor to remove: a path
// whose directory is one is an error (beneath.h). Paths are is_inner_path().
//
// Safe for concurrent use by several threads, as long as each path is written by one of them.
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

/// How the kernel is called; other values are for tests.
struct OutSystem {
  Walk walk = Walk::Kernel;
  std::function<int(int descriptor)> sync_directory = ::fsync;
  /// Asked before each call that changes something, but those of OutDirectory::open(), and those
  /// that reserve room, make a nameless file, or set a mode or a directory's time: the errno that
  /// it fails with instead, of a write after half of its bytes; 0: it is made.
  std::function<int()> fault = {};

  int next_fault() const { return fault ? fault() : 0; }
};

/// A file being written under its temporary name.
class OutFile {
 public:
  OutFile(std::string thing, UniqueFd fd, std::shared_ptr<const OutSystem> system)
      : thing_(std::move(thing)), fd_(std::move(fd)), system_(std::move(system)) {}

  /// Reserves disk for `range` without growing the file. File systems that cannot are left alone.
  /// Errors: Io (ENOSPC, EDQUOT).
  Result<void> reserve(ByteRange range);
  /// Gives back the disk of `range`; a hint.
  void release(ByteRange range);
  /// Where kernel and file system can, the bytes leave the host's page cache when they are on disk
  /// (RWF_DONTCACHE, 6.14); elsewhere sync() drops them: who exports a terabyte does not want it in
  /// the place of all that is cached.
  Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Asks the kernel to begin writing these bytes to disk; a hint.
  void start_writeback(std::uint64_t offset, std::uint64_t size);
  /// Everything written so far survives a power failure, and is in the page cache no longer.
  Result<void> sync();
  /// Makes the file `size` bytes long, shorter or longer, and gives back the reserved disk behind.
  Result<void> truncate(std::uint64_t size);
  Result<void> set_mtime(std::int64_t seconds);
  /// What it is called in messages.
  const std::string& thing() const { return thing_; }

 private:
  friend class OutDirectory;

  std::string thing_;
  UniqueFd fd_;
  std::shared_ptr<const OutSystem> system_;
  bool uncached_ = true;  // as far as known
};

/// What is there under a name.
struct OutEntry {
  bool regular = false;
  std::uint64_t size = 0;
  std::uint64_t allocated = 0;  // bytes of disk
  std::int64_t mtime = 0;       // seconds
};

/// Who else may write there meanwhile.
enum class Others : bool { No, OfOneFleet };

/// The mode of a copy of what these (bits of 0444) may read: who may read may write, as far as the
/// umask goes.
constexpr unsigned mode_of_copy(std::uint32_t readers) {
  return readers | readers >> 1;
}

class OutDirectory {
 public:
  /// Creates `path` and its parents where they are missing, and locks it against other exports (but
  /// those of the fleet, for one that is of a fleet), as far as its file system has locks: NFS and
  /// FUSE have none of directories between hosts.
  /// Directories that are made, `path` and those below it, are accepted by distrust() from their
  /// first moment on (but where a file system has one mode for all), whatever group a set-group-ID
  /// directory gives them: the umask decides for the caller's own group alone. So are files, but
  /// where the umask or a default ACL lets everybody write. Links in `path` itself are followed.
  /// Errors: InvalidArgument (not a directory; locked by another export), NotFound (a link that
  /// leads nowhere), Io.
  static Result<OutDirectory> open(const std::filesystem::path& path, OutSystem system = {},
                                   Others others = Others::No);

  const std::string& name() const { return name_; }

  /// nullopt: nothing there that could be reached.
  std::optional<OutEntry> entry(const std::string& path) const;
  /// Why what is at `path` ("" is OUT) may be another user's doing; nullopt: nothing is there, or
  /// it belongs to the caller or to root and nobody but the caller's own group may write to it, by
  /// its mode and its POSIX ACL. Of other kinds of ACLs (NFS 4) the mode is all that is seen.
  std::optional<std::string> distrust(const std::string& path) const;
  /// A path, relative to OUT, of something that is no directory and that `known` does not accept.
  Result<std::optional<std::string>> find_foreign(
      const std::function<bool(const std::string& path)>& known) const;
  std::optional<std::uint64_t> free_bytes() const;

  /// The directories above `path`.
  Result<void> make_parents(const std::string& path) const;
  /// A new, empty file, with `mode` less the umask (where the kernel does not show that, or the
  /// file system gives no rights: no more for the group than for everybody), or what a default ACL
  /// of its directory leaves of it, which lets no group write then (where it is the caller's own,
  /// or not everybody may). A group other than the caller's own, as a set-group-ID directory gives,
  /// may write only where everybody may, and gets no more than everybody where `mode` tells them
  /// apart; not for a moment more. What had the name is removed.
  Result<OutFile> create(const std::string& path, unsigned mode = 0666) const;
  /// An existing regular file. Errors: NotFound, InvalidArgument (a symbolic link, a device, a
  /// FIFO that somebody reads), Io (also a directory, a FIFO that nobody reads).
  Result<OutFile> reopen(const std::string& path) const;
  /// The same, and a new one where there is none: others may do so, too, and all write to one.
  Result<OutFile> open_shared(const std::string& path, unsigned mode = 0666) const;
  /// Whether `path` is still that file, as far as is known: false where somebody has removed it
  /// since it was opened, or, on file systems whose files keep their inode numbers, replaced it.
  bool is_at(const std::string& path, const OutFile& file) const;
  /// A descriptor that holds the lock of a file, made where it is missing; an empty one: another
  /// process holds it. Where a file system has no locks, the descriptor is that of the file.
  Result<UniqueFd> lock(const std::string& path) const;
  /// The names in `directory` ("" is OUT), in no order.
  Result<std::vector<std::string>> names(const std::string& directory) const;
  Result<void> rename(const std::string& from, const std::string& to) const;
  /// A file without a name in the directory of `path`. Errors: Io (also where the file system has
  /// no such files).
  Result<UniqueFd> open_nameless(const std::string& path) const;
  /// Removes a file; no error where there is none.
  Result<void> remove(const std::string& path) const;
  /// Removes a directory. No error where there is none, or where something is in it.
  Result<void> remove_directory(const std::string& path) const;
  /// Removes the directories above `files` in which nothing is any more. What cannot be removed
  /// stays.
  void remove_empty_parents(const std::vector<std::string>& files) const;
  /// The entries of `directory` ("" is OUT) survive a power failure. Where the file system has no
  /// such promise to give (EINVAL, ENOTSUP), that is logged once and is no error.
  Result<void> sync_directory(const std::string& directory) const;
  void set_directory_mtime(const std::string& directory, std::int64_t seconds) const;

  /// At most `limit` bytes of a regular file. nullopt: nothing there. Errors: InvalidArgument (not
  /// a regular file, or longer), Io.
  Result<std::optional<std::string>> read_text(const std::string& path, std::size_t limit) const;
  /// The old text or the new one, whatever happens meanwhile and whoever else replaces it.
  Result<void> replace_text(const std::string& path, const std::string& text) const;
  /// A file of that text where there was none. False: something has that name. Of several callers,
  /// on any hosts, one gets true: the name is a link made once, which also old NFS servers decide.
  Result<bool> put_text(const std::string& path, const std::string& text) const;

  /// The mark (the extended attribute user.ckfs.export) of a regular file or a directory; "" is
  /// OUT. nullopt: it has none, or it cannot be read.
  std::optional<std::string> mark(const std::string& path) const;
  /// Gives a file, or OUT, a mark. False: the file system keeps none.
  Result<bool> set_mark(const std::string& path, const std::string& text) const;
  /// Takes OUT's own mark away for good; no error where it has none.
  Result<void> remove_mark() const;

 private:
  /// Where a path's last name is looked up.
  struct Place {
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
  Result<Place> place(const std::string& path, std::string_view what) const;

  std::string name_;
  UniqueFd fd_;
  Others others_;
  std::shared_ptr<const OutSystem> system_;
  /// Whether a directory was found that cannot be synced. Behind a pointer, to be movable.
  std::unique_ptr<std::atomic<bool>> unsynced_ = std::make_unique<std::atomic<bool>>(false);
};

}  // namespace ckfs
