// A directory's own entries say what is a file, so listing costs no operation for each; a link
// costs one, where it is followed. Names are looked up by whole paths, not from descriptors of
// their directories: the kernel keeps the directories of a path, also of a network file system's,
// and a descriptor for each would compete with those of the files.
#include "io/source_store.h"

#include <algorithm>
#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace ckfs {
namespace {

FileKind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return FileKind::File;
  if (S_ISDIR(mode)) return FileKind::Directory;
  if (S_ISLNK(mode)) return FileKind::Link;
  return FileKind::Other;
}

FileStatus status_of(const struct stat& status, gid_t group) {
  FileStatus result{kind_of(status.st_mode), fingerprint_of(status), status.st_nlink};
  result.fingerprint.readers = readers_of(status, group);
  return result;
}

/// A directory that is being listed.
class Listing {
 public:
  explicit Listing(DIR* directory) : directory_(directory) {}
  Listing(const Listing&) = delete;
  Listing& operator=(const Listing&) = delete;
  ~Listing() { ::closedir(directory_); }

  /// nullptr: there are no more, or (errno) an error.
  const dirent* next() {
    errno = 0;
    return ::readdir(directory_);  // safe: a DIR belongs to one thread
  }

  Tried<FileKind> kind(const dirent& entry) {
    switch (entry.d_type) {
      case DT_REG:
        return FileKind::File;
      case DT_DIR:
        return FileKind::Directory;
      case DT_LNK:
        return FileKind::Link;
      case DT_UNKNOWN:  // some file systems do not say
        break;
      default:
        return FileKind::Other;
    }
    struct stat status{};
    if (::fstatat(::dirfd(directory_), entry.d_name, &status, AT_SYMLINK_NOFOLLOW) != 0) {
      return tl::unexpected(errno);
    }
    return kind_of(status.st_mode);
  }

 private:
  DIR* directory_;
};

class LocalStore final : public OpenStore {
 public:
  Tried<std::vector<StoreEntry>> list(const std::filesystem::path& directory) override {
    DIR* opened = ::opendir(directory.c_str());
    if (opened == nullptr) return tl::unexpected(errno);
    Listing listing(opened);
    std::vector<StoreEntry> entries;
    while (const dirent* entry = listing.next()) {
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      const Tried<FileKind> kind = listing.kind(*entry);
      if (kind) {
        entries.push_back({std::string(name), *kind});
      } else if (!is_absent(kind.error())) {  // else removed in between
        return tl::unexpected(kind.error());
      }
    }
    if (errno != 0) return tl::unexpected(errno);
    std::ranges::sort(entries, {}, &StoreEntry::name);
    return entries;
  }

  Tried<FileStatus> look(const std::filesystem::path& path) override {
    struct stat status{};
    if (::stat(path.c_str(), &status) != 0) return tl::unexpected(errno);
    return status_of(status, group_);
  }

  Tried<std::filesystem::path> resolve(const std::filesystem::path& path) override {
    std::error_code error;
    std::filesystem::path resolved = std::filesystem::canonical(path, error);
    if (error) return tl::unexpected(error.value());
    return resolved;
  }

  Tried<std::filesystem::path> link_target(const std::filesystem::path& path) override {
    std::error_code error;
    std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) return tl::unexpected(error.value());
    return target;
  }

  Tried<UniqueFd> open(const std::filesystem::path& path) override {
    while (true) {
      // O_NONBLOCK means nothing to a regular file, but a FIFO that took its place would block us.
      UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
      if (fd) return fd;
      if (errno != EINTR) return tl::unexpected(errno);
    }
  }

  Tried<FileStatus> look(int fd) override {
    struct stat status{};
    if (::fstat(fd, &status) != 0) return tl::unexpected(errno);
    return status_of(status, group_);
  }

 private:
  // Files are looked at twice for each read: a system call less.
  const gid_t group_ = ::getegid();
};

}  // namespace

bool is_absent(int error) {
  return error == ENOENT || error == ENOTDIR;
}

bool is_out_of_reach(int error) {
  return is_absent(error) || error == ELOOP || error == EACCES;
}

std::vector<std::byte> OpenStore::first_bytes(const std::filesystem::path& path,
                                              std::size_t count) {
  const auto fd = open(path);
  if (!fd) return {};
  std::vector<std::byte> bytes(count);
  std::size_t have = 0;
  while (have < count) {
    const ssize_t more =
        ::pread(fd->get(), bytes.data() + have, count - have, static_cast<off_t>(have));
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) break;
    have += static_cast<std::size_t>(more);
  }
  bytes.resize(have);
  return bytes;
}

std::unique_ptr<OpenStore> make_local_store() {
  return std::make_unique<LocalStore>();
}

}  // namespace ckfs
