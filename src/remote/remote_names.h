// The names of a source that is far away, from one listing: looked up without a request.
//
// A listing has objects and no directories: the part of a name before a '/' is a directory.
// Immutable, so safe for concurrent use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fetch/remote_source.h"
#include "io/source_store.h"

namespace ckfs {

class RemoteNames {
 public:
  /// Requires: objects by name.
  explicit RemoteNames(RemoteSource source);

  const RemoteSource& source() const { return source_; }
  /// What paths of the source begin with: the pinned location, without secrets and without the name
  /// of a single object.
  const std::string& root() const { return root_; }
  /// Where the source is, as a path: root(), or that of its only object.
  std::filesystem::path path() const;

  /// The name below root(), "" for root() itself; nullopt: `path` does not lie in the source.
  std::optional<std::string_view> name_of(const std::filesystem::path& path) const;

  /// As SourceStore has them, of a name below root(); "": the top.
  Tried<std::vector<StoreEntry>> list(std::string_view directory) const;
  Tried<FileStatus> look(std::string_view name) const;
  /// The object that is the file `name`; nullopt: there is none.
  std::optional<std::size_t> find(std::string_view name) const;

  /// Size, time and version of an object, as those of a file.
  Fingerprint fingerprint(std::size_t object) const;

  /// Objects that cannot be files of the source, and why: those that the fetcher refused, and those
  /// whose name is also a directory.
  const std::vector<std::string>& refused() const { return source_.refused; }

 private:
  /// The first object whose name is not less than `name`.
  std::size_t first_from(std::string_view name) const;
  bool is_directory(std::string_view name) const;

  RemoteSource source_;
  std::string root_;
};

}  // namespace ckfs
