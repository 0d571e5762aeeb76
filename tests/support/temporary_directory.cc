// mkdtemp, so that two runs of a test never meet; in TMPDIR, so that whoever runs the tests chooses
// the file system.
#include "support/temporary_directory.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <system_error>

#include "base/error.h"

namespace ckfs {

TemporaryDirectory::TemporaryDirectory()
    : TemporaryDirectory(std::filesystem::temp_directory_path()) {}

TemporaryDirectory::TemporaryDirectory(const std::filesystem::path& parent) {
  std::string pattern = (parent / "ckfs-test-XXXXXX").string();
  CKFS_CHECK(::mkdtemp(pattern.data()) != nullptr);
  path_ = std::filesystem::canonical(pattern);
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path TemporaryDirectory::write(std::string_view name,
                                                std::span<const std::byte> bytes) const {
  const std::filesystem::path path = path_ / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  for (const std::byte byte : bytes) out.put(static_cast<char>(byte));
  out.close();
  CKFS_CHECK(!out.fail());
  return path;
}

std::filesystem::path TemporaryDirectory::write(std::string_view name,
                                                std::string_view text) const {
  return write(name, std::as_bytes(std::span(text)));
}

}  // namespace ckfs
