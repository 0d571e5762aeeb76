// A file without a name in a directory of the user's choice: gone with the last descriptor,
// whatever becomes of the process. (Where the file system knows no O_TMPFILE, it has one until it
// is removed, at once.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "base/unique_fd.h"

namespace ckfs {

/// Safe for concurrent use by several threads.
class SpillFile {
 public:
  /// Errors: NotFound, Io (no file can be made there).
  static Result<std::unique_ptr<SpillFile>> create(const std::filesystem::path& directory);

  /// Over a descriptor of a file without a name; `name` is for messages.
  static std::unique_ptr<SpillFile> adopt(std::string name, UniqueFd fd);

  /// Errors: Io (ENOSPC: the disk is full).
  Result<void> write(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Errors: Io; a file that is shorter, too.
  Result<void> read(std::uint64_t offset, std::span<std::byte> out);

 private:
  SpillFile(std::string name, UniqueFd fd) : name_(std::move(name)), fd_(std::move(fd)) {}
  const std::string name_;
  const UniqueFd fd_;
};

}  // namespace ckfs
