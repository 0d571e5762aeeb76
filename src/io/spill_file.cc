#include "io/spill_file.h"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <unistd.h>

#include "base/write_all.h"

namespace ckfs {

Result<std::unique_ptr<SpillFile>> SpillFile::create(const std::filesystem::path& directory) {
  const std::string name = directory.native() + " (spill)";
  UniqueFd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.get() < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    // A file system without O_TMPFILE: the name is there for a moment.
    std::string path = (directory / ".ckfs-spill-XXXXXX").native();
    fd = UniqueFd(::mkostemp(path.data(), O_CLOEXEC));
    if (fd.get() >= 0) ::unlink(path.c_str());
  }
  if (fd.get() < 0) return system_failure(errno, name, "open");
  return adopt(name, std::move(fd));
}

std::unique_ptr<SpillFile> SpillFile::adopt(std::string name, UniqueFd fd) {
  return std::unique_ptr<SpillFile>(new SpillFile(std::move(name), std::move(fd)));
}

Result<void> SpillFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  const int error = write_all(bytes, offset, [&](std::span<const std::byte> some, auto at) {
    return ::pwrite(fd_.get(), some.data(), some.size(), static_cast<off_t>(at));
  });
  if (error != 0) return system_failure(error, name_, "write");
  return {};
}

Result<void> SpillFile::read(std::uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t done = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return system_failure(done < 0 ? errno : EIO, name_, "read");
    offset += static_cast<std::uint64_t>(done);
    out = out.subspan(static_cast<std::size_t>(done));
  }
  return {};
}

}  // namespace ckfs
