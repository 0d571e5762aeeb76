#include "fetch/shared_memory.h"

#include <cerrno>
#include <fcntl.h>
#include <iterator>
#include <sys/mman.h>
#include <sys/stat.h>
#include <utility>

namespace ckfs {
namespace {

Result<std::span<std::byte>> map_file(int file, std::size_t size) {
  void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return system_failure(errno, "shared memory", "mmap");
  return std::span(static_cast<std::byte*>(at), size);
}

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

Result<SharedMemory> SharedMemory::make(std::size_t size) {
  UniqueFd file(::memfd_create("ckfs-fetch", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return system_failure(errno, "shared memory", "memfd_create");
  // A file that one end makes shorter would be a SIGBUS of the other.
  if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) {
    return system_failure(errno, "shared memory", "ftruncate");
  }
  CKFS_TRY(const auto bytes, map_file(file.get(), size));
  return SharedMemory(std::move(file), bytes);
}

Result<SharedMemory> SharedMemory::map(UniqueFd file) {
  struct stat status{};
  const int seals = ::fcntl(file.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals || ::fstat(file.get(), &status) != 0 ||
      status.st_size <= 0) {
    return fail(ErrorCode::Io, "shared memory: not made by a client of ckfs");
  }
  CKFS_TRY(const auto bytes, map_file(file.get(), static_cast<std::size_t>(status.st_size)));
  return SharedMemory(std::move(file), bytes);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::move(other.file_)), bytes_(std::exchange(other.bytes_, {})) {}

SharedMemory::~SharedMemory() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

namespace {

std::size_t whole_pages(std::size_t size) {
  return (size + Places::kPage - 1) / Places::kPage * Places::kPage;
}

}  // namespace

std::optional<std::uint64_t> Places::take(std::size_t size) {
  const std::size_t wanted = whole_pages(size);
  for (auto each = free_.begin(); each != free_.end(); ++each) {
    if (each->second < wanted) continue;
    const auto [begin, had] = *each;
    free_.erase(each);
    if (had > wanted) free_.emplace(begin + wanted, had - wanted);
    return begin;
  }
  return std::nullopt;
}

void Places::give_back(std::uint64_t place, std::size_t size) {
  auto [at, is_new] = free_.emplace(place, whole_pages(size));
  CKFS_CHECK(is_new);
  const auto next = std::next(at);
  if (next != free_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at != free_.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second == at->first) {
      before->second += at->second;
      free_.erase(at);
    }
  }
}

std::size_t Places::free() const {
  std::size_t all = 0;
  for (const auto& [begin, size] : free_) all += size;
  return all;
}

}  // namespace ckfs
