#include "io/file_mappings.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <mutex>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "base/units.h"
#include "io/page_cache.h"

namespace ckfs {

/// A mapping as the handler of SIGBUS sees it. Places outlive their mappings and are used again.
struct FileMapping::Place {
  std::atomic<std::uintptr_t> begin{0};  // 0: free; 1: taken, not yet or no more mapped
  std::atomic<std::uintptr_t> end{0};
  std::atomic<bool> broken{false};
};

void FileMapping::GivePlace::operator()(Place* place) const {
  place->begin.store(0, std::memory_order_release);
}

namespace {

constexpr std::uintptr_t kTaken = 1;

constexpr std::chrono::nanoseconds kTrusted = std::chrono::seconds(1);
/// A region that is not cached may be soon: perhaps this process is reading it.
constexpr std::chrono::nanoseconds kDoubted = std::chrono::milliseconds(100);
constexpr std::chrono::nanoseconds kBoundedEvery = std::chrono::milliseconds(1);

struct sigaction handled_before;  // what SIGBUS did

std::int64_t now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool is_address_space_limited() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

/// Bytes of files that the process has mapped and touched.
std::uint64_t resident_file_bytes(const UniqueFd& statm) {
  std::array<char, 128> text{};
  if (::pread(statm.get(), text.data(), text.size() - 1, 0) <= 0) return 0;
  unsigned long long size = 0, resident = 0, shared = 0;
  // The kernel writes these numbers. NOLINTNEXTLINE(cert-err34-c)
  if (std::sscanf(text.data(), "%llu %llu %llu", &size, &resident, &shared) != 3) return 0;
  return shared * kPage;
}

}  // namespace

/// Globals, because a handler can reach nothing else.
struct FileMapping::Places {
  static inline std::array<Place, kMostMappings> all;

  /// Passes on a signal that is not about a mapping of ours. Calls the handler that was there
  /// before, and keeps this one, because the other may return.
  static void pass_on(int number, siginfo_t* info, void* context) {
    if ((handled_before.sa_flags & SA_SIGINFO) != 0) {
      handled_before.sa_sigaction(number, info, context);
    } else if (handled_before.sa_handler != SIG_DFL && handled_before.sa_handler != SIG_IGN) {
      handled_before.sa_handler(number);
    } else if (!is_sent(*info)) {
      ::sigaction(SIGBUS, &handled_before, nullptr);  // the fault comes again when this returns
    } else if (handled_before.sa_handler == SIG_DFL) {
      ::sigaction(SIGBUS, &handled_before, nullptr);
      ::raise(number);  // blocked until this returns; nothing else would send it again
    }
  }

  /// By a process (kill, tgkill, sigqueue): no fault, and si_addr holds the sender's ids, which may
  /// look like an address in a mapping.
  static bool is_sent(const siginfo_t& info) { return info.si_code <= 0; }

  static void on_bus_error(int number, siginfo_t* info, void* context) {
    if (is_sent(*info)) {
      pass_on(number, info, context);
      return;
    }
    const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
    for (Place& place : all) {
      const std::uintptr_t begin = place.begin.load(std::memory_order_acquire);
      const std::uintptr_t end = place.end.load(std::memory_order_acquire);
      if (begin <= kTaken || address < begin || address >= end) continue;
      // Both must be of one mapping, not the start of one and the end of the next in its place.
      if (place.begin.load(std::memory_order_acquire) != begin) continue;
      place.broken.store(true, std::memory_order_release);
      const std::uintptr_t page = address / kPage * kPage;
      // NOLINTNEXTLINE(performance-no-int-to-ptr): the fault is known by its address
      void* const zeros = ::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
      if (zeros != MAP_FAILED) return;
    }
    pass_on(number, info, context);
  }

  static void install_handler() {
    static std::once_flag once;
    std::call_once(once, [] {
      struct sigaction action{};
      action.sa_sigaction = on_bus_error;
      action.sa_flags = SA_SIGINFO | SA_ONSTACK;
      ::sigaction(SIGBUS, &action, &handled_before);
    });
  }
};

std::shared_ptr<FileMapping> FileMapping::make(int fd, std::uint64_t size) {
  if (size == 0 || is_address_space_limited()) return nullptr;
  Places::install_handler();
  TakenPlace taken;
  for (Place& each : Places::all) {
    std::uintptr_t free = 0;
    if (each.begin.compare_exchange_strong(free, kTaken)) {
      taken.reset(&each);
      break;
    }
  }
  if (taken == nullptr) return nullptr;
  Place* const place = taken.get();
  // Maps before the table is made: a size that can be mapped has a table of 32 MiB at most,
  // whatever size a file claims.
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::shared_ptr<FileMapping> made;
  try {
    made.reset(new FileMapping(size, std::move(taken)));
  } catch (const std::bad_alloc&) {
    ::munmap(memory, size);
    return nullptr;
  }
  made->bytes_ = {static_cast<const std::byte*>(memory), size};
  // A page that has left the cache since is fetched alone.
  ::madvise(memory, size, MADV_RANDOM);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  place->broken.store(false);
  place->end.store((begin + size + kPage - 1) / kPage * kPage);
  place->begin.store(begin, std::memory_order_release);
  return made;
}

FileMapping::FileMapping(std::uint64_t size, TakenPlace place)
    : place_(std::move(place)), regions_((size + kRegion - 1) / kRegion) {}

FileMapping::~FileMapping() {
  place_->begin.store(kTaken);
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

bool FileMapping::broken() const {
  return place_->broken.load(std::memory_order_acquire);
}

bool FileMapping::is_cached(int fd, ByteRange range) {
  const auto all_pages = [&](ByteRange of) {
    const std::uint64_t pages = (of.end + kPage - 1) / kPage - of.begin / kPage;
    return page_cache::cached_pages(fd, of).value_or(0) >= pages;
  };
  const std::int64_t time = now();
  const std::uint64_t last = (range.end - 1) / kRegion;
  if (range.size() <= kShort && range.begin / kRegion == last) {
    const std::int64_t known = regions_[last].load(std::memory_order_relaxed);
    return known > time || all_pages(range);
  }
  for (std::uint64_t r = range.begin / kRegion; r * kRegion < range.end; ++r) {
    std::int64_t known = regions_[r].load(std::memory_order_relaxed);
    if (std::abs(known) <= time) {
      const bool cached =
          all_pages({r * kRegion, std::min<std::uint64_t>((r + 1) * kRegion, bytes_.size())});
      known = cached ? time + kTrusted.count() : -(time + kDoubted.count());
      regions_[r].store(known, std::memory_order_relaxed);
    }
    if (known < 0) return false;
  }
  return true;
}

void FileMapping::let_go() const {
  // A broken mapping stays as it is: a part of it is zeros, and not pages of the file.
  if (!broken()) ::madvise(const_cast<std::byte*>(bytes_.data()), bytes_.size(), MADV_DONTNEED);
}

FileMappings::FileMappings() : statm_(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC)) {}

std::shared_ptr<FileMapping> FileMappings::of(FileId file, int fd, std::uint64_t size) {
  if (auto found = find(file)) return found;
  auto made = FileMapping::make(fd, size);
  if (!made) return nullptr;
  const MutexLock lock(mutex_);
  // Those in use stay as long as they are.
  if (mappings_.size() >= FileMapping::kMostMappings / 2) mappings_.clear();
  return mappings_.emplace(file, std::move(made)).first->second;
}

std::shared_ptr<FileMapping> FileMappings::find(FileId file) const {
  const MutexLock lock(mutex_);
  const auto found = mappings_.find(file);
  return found == mappings_.end() ? nullptr : found->second;
}

void FileMappings::drop(FileId file) {
  const MutexLock lock(mutex_);
  mappings_.erase(file);
}

std::vector<std::shared_ptr<FileMapping>> FileMappings::all() const {
  std::vector<std::shared_ptr<FileMapping>> all;
  const MutexLock lock(mutex_);
  for (const auto& [file, mapping] : mappings_) all.push_back(mapping);
  return all;
}

void FileMappings::let_go() {
  for (const auto& mapping : all()) mapping->let_go();
}

void FileMappings::bound(std::uint64_t most) {
  const std::int64_t time = now();
  std::int64_t last = bounded_.load(std::memory_order_relaxed);
  if (time - last < kBoundedEvery.count() || !bounded_.compare_exchange_strong(last, time)) return;
  if (resident_file_bytes(statm_) > most) let_go();
}

}  // namespace ckfs
