// A directory of a test's own, removed with everything in it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace ckfs {

class TemporaryDirectory {
 public:
  TemporaryDirectory();
  /// In `parent`: for tests that need the disk that the build lies on, whatever TMPDIR is.
  explicit TemporaryDirectory(const std::filesystem::path& parent);
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

  /// Creates or overwrites a file; parents are created.
  std::filesystem::path write(std::string_view name, std::span<const std::byte> bytes) const;
  std::filesystem::path write(std::string_view name, std::string_view text) const;

 private:
  std::filesystem::path path_;
};

}  // namespace ckfs
