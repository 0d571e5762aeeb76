// The directory of the disk cache: whose it is, how much lies in it, and which files leave it
// first. Internal to src/cache; block_cache.h has the promises.
//
//   DIR/CACHEDIR.TAG    for backup programs, which pass over such a directory
//   DIR/v1/lock         held while the amount of bytes changes; says how many there are
//   DIR/v1/SOURCE/      a source; SOURCE is a hash of its name
//     record            the name; held (shared) by each process that uses the source
//     OBJECT-BLOCK      a block (block_file.h)
//     text-KEY          a listing, or what else a caller keeps
//     new-KEY           a text before it has its name
//
// After open() and source() were called, all is done by openat, pread, pwrite, fallocate, unlinkat,
// renameat, fstat, fstatfs, getdents and fcntl: a confined daemon needs no other call.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

namespace ckfs {

/// How the kernel is called; other values are for tests.
struct CacheSystem {
  /// Asked before each call that changes something: the errno that it fails with instead, of a
  /// write after half of its bytes; 0: it is made.
  std::function<int()> fault = {};
  /// Bytes of the disk that are free; absent: those that the file system has.
  std::function<std::uint64_t()> free_bytes = {};
  /// Bytes of the disk, all together.
  std::function<std::uint64_t()> disk_bytes = {};
};

struct CacheOptions {
  /// The most bytes of disk that the directory has.
  std::uint64_t size = std::uint64_t{10} << 30;
  /// Bytes of the disk that stay free for others. Absent: a twentieth of the disk, 10 GiB at most.
  std::optional<std::uint64_t> keep_free = {};
  /// A file counts as used anew once its last use is so long ago.
  std::chrono::seconds touch_after{60};
  enum class Missing : bool { Create, Fail };
  Missing missing = Missing::Create;  // where the directory does not exist
  CacheSystem system = {};
};

/// What the cache has of a source.
struct CachedSource {
  std::string name;
  std::uint64_t bytes = 0;  // of disk
  std::int64_t used = 0;    // last use, in seconds of Unix
};

/// Safe for concurrent use by several threads.
class CacheDirectory {
 public:
  /// Errors: as BlockCache::open().
  static Result<std::unique_ptr<CacheDirectory>> open(const std::filesystem::path& path,
                                                      CacheOptions options);

  /// A source's directory, kept from being removed.
  struct Source {
    UniqueFd directory;
    UniqueFd record;
  };
  /// Makes it where it is missing. Errors: as BlockCache::source().
  Result<Source> source(std::string_view name);

  /// Calls `work` while no other thread or process changes how much is there. False: others do, for
  /// too long to wait; `work` was not called.
  bool locked(const std::function<void()>& work) CKFS_EXCLUDES(mutex_);
  /// Within locked(): makes room for `bytes` more and counts them. Removes the files that were used
  /// longest ago, until both limits are kept. False: there is not so much room; nothing is counted.
  bool make_room(std::uint64_t bytes);
  /// Within locked(): bytes that were counted are not there after all.
  void give_back(std::uint64_t bytes);

  std::vector<CachedSource> list() const;
  /// Removes all of a source, and returns how many bytes of disk that were. Errors: NotFound (there
  /// is nothing of it), Io.
  Result<std::uint64_t> clear(std::string_view name);

  const CacheOptions& options() const { return options_; }
  int next_fault() const { return options_.system.fault ? options_.system.fault() : 0; }
  std::uint64_t evicted() const { return evicted_; }

 private:
  struct Usage;
  CacheDirectory(std::string name, UniqueFd top, CacheOptions options)
      : name_(std::move(name)), top_(std::move(top)), options_(std::move(options)) {}

  bool take_lock();
  void release_lock();
  /// The bytes that are counted; nullopt: they must be counted anew.
  std::optional<std::uint64_t> counted();
  void count(std::uint64_t used);
  std::uint64_t missing_free(std::uint64_t bytes) const;
  /// Counts all there is, and removes files of at least as many bytes as `excess` says of the sum,
  /// those used longest ago.
  std::uint64_t count_and_remove(const std::function<std::uint64_t(std::uint64_t)>& excess);

  const std::string name_;
  const UniqueFd top_;  // DIR/v1
  UniqueFd lock_;
  const CacheOptions options_;
  std::uint64_t keep_free_ = 0;
  std::uint64_t boot_ = 0;  // tells this start of this machine from others
  Mutex mutex_;
  std::chrono::steady_clock::time_point busy_until_ CKFS_GUARDED_BY(mutex_){};
  // The rest is touched within locked() only.
  std::uint64_t last_boot_ = 0;     // of a count that was not this machine's
  std::uint64_t trusted_boot_ = 0;  // the same, once all there is was counted
  std::atomic<std::uint64_t> evicted_{0};
};

/// A hash as the names of the directory have it: 16 hexadecimal digits.
std::string cache_name_of(std::uint64_t hash);

/// Writes all of `bytes`, or what a fault of the tests leaves of them. Returns 0 or the errno.
int write_cached(const CacheDirectory& directory, int file, std::uint64_t offset,
                 std::span<const std::byte> bytes);
/// Reads all of `out`. False: there is not so much, or it cannot be read.
bool read_cached(int file, std::uint64_t offset, std::span<std::byte> out);

}  // namespace ckfs
