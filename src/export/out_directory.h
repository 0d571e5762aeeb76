// The directory that an export writes: all system calls of src/export, relative to one descriptor
// of OUT, so that nothing else is touched if somebody renames OUT meanwhile.
//
// Safe for concurrent use by several threads, as long as each path is written by one of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "base/unique_fd.h"

namespace ckfs {

/// A file being written under its temporary name.
class OutFile {
 public:
  OutFile(std::string thing, UniqueFd fd) : thing_(std::move(thing)), fd_(std::move(fd)) {}

  /// Reserves disk for `size` bytes without growing the file. File systems that cannot are left
  /// alone. Errors: Io (ENOSPC).
  Result<void> reserve(std::uint64_t size);
  Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Asks the kernel to begin writing these bytes to disk; a hint.
  void start_writeback(std::uint64_t offset, std::uint64_t size);
  /// Everything written so far survives a power failure.
  Result<void> sync();
  /// Cuts the file to `size` and gives back the reserved disk behind it.
  Result<void> truncate(std::uint64_t size);
  Result<void> set_mtime(std::int64_t seconds);

 private:
  std::string thing_;
  UniqueFd fd_;
};

/// What is there under a name.
struct OutEntry {
  bool regular = false;
  std::uint64_t size = 0;
  std::uint64_t allocated = 0;  // bytes of disk
  std::int64_t mtime = 0;       // seconds
};

class OutDirectory {
 public:
  /// Creates `path` and its parents where they are missing, and locks it against a second export.
  /// Errors: InvalidArgument (not a directory; locked by another export), Io.
  static Result<OutDirectory> open(const std::filesystem::path& path);

  const std::string& name() const { return name_; }

  /// nullopt: nothing there. Symbolic links are not followed.
  std::optional<OutEntry> entry(const std::string& path) const;
  /// A path, relative to OUT, of something that is no directory and that `known` does not accept.
  Result<std::optional<std::string>> find_foreign(
      const std::function<bool(const std::string& path)>& known) const;
  std::optional<std::uint64_t> free_bytes() const;

  /// The directories above `path`.
  Result<void> make_parents(const std::string& path) const;
  /// A new, empty file; what had the name is removed.
  Result<OutFile> create(const std::string& path) const;
  /// An existing regular file. Errors: NotFound, Io.
  Result<OutFile> reopen(const std::string& path) const;
  Result<void> rename(const std::string& from, const std::string& to) const;
  /// Removes a file; no error where there is none.
  Result<void> remove(const std::string& path) const;
  /// The entries of `directory` ("" is OUT) survive a power failure.
  Result<void> sync_directory(const std::string& directory) const;
  void set_directory_mtime(const std::string& directory, std::int64_t seconds) const;

  /// At most `limit` bytes. nullopt: nothing there.
  Result<std::optional<std::string>> read_text(const std::string& path, std::size_t limit) const;
  /// The old text or the new one, whatever happens meanwhile.
  Result<void> replace_text(const std::string& path, const std::string& text) const;

 private:
  OutDirectory(std::string name, UniqueFd fd) : name_(std::move(name)), fd_(std::move(fd)) {}
  std::string thing(const std::string& path) const { return name_ + "/" + path; }

  std::string name_;
  UniqueFd fd_;
};

}  // namespace ckfs
