// The disk cache: bytes of sources that are far away, kept in a directory of this machine for later
// reads, later mounts, and other processes.
//
// Bytes are kept under the name of an object and its version. A new version is another object here,
// so nothing is ever out of date. An object is cut into blocks of 4 MiB, each of them a file, and
// blocks are cut into cells of 64 KiB, each with a CRC-32C.
//
// - Why 4 MiB: 700 GB are 170,000 files, which one directory can hold, and a block more or less
//   matters to no limit.
// - Why 64 KiB: the reader of a small tensor fetches at most 128 KiB more than it needs.
//
// Promises:
//
// - Only right bytes are given: those that were put for this object and version. A cell is there if
//   its record says so and its sum is right, and for no other reason.
// - A process may be killed, and the machine may crash, at any point. Cells that were being written
//   are then not there.
// - Several mounts and processes share a directory. None waits for another longer than a second.
// - The limits (CacheOptions) are kept before bytes are written: the blocks that were used longest
//   ago make room. A disk that is full, or fails, means that less is kept. It is never an error.
//
// Safe for concurrent use by several threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_range.h"
#include "base/error.h"
#include "cache/block_file.h"
#include "cache/cache_directory.h"

namespace ckfs {

/// An object of a source in one version.
struct CacheObject {
  std::string name;
  /// Tells this content from any other that ever had the name: objects without such a version must
  /// not be kept (RemoteSource::is_pinned).
  std::string version;
  std::uint64_t size = 0;
};

struct CacheStatistics {
  std::uint64_t found = 0;    // bytes that were given
  std::uint64_t missed = 0;   // bytes that were asked for and not there
  std::uint64_t kept = 0;     // bytes that were put and written
  std::uint64_t refused = 0;  // bytes that were put and not written: no room, a fault, a busy lock
  std::uint64_t evicted = 0;  // bytes of disk that made room
};

/// $XDG_CACHE_HOME/ckfs, else $HOME/.cache/ckfs. Errors: NotFound (neither is set).
Result<std::filesystem::path> default_cache_directory();

class BlockCache {
 public:
  /// Makes the directory, for the caller alone, where it is missing. Errors: NotFound (it is
  /// missing and is not to be made), InvalidArgument (it is another user's, or other users have
  /// rights there), Unsupported (a file system without locks), Io.
  static Result<std::unique_ptr<BlockCache>> open(const std::filesystem::path& directory,
                                                  CacheOptions options = {});

  /// A place for the objects of one source. `name` is the same for all of its versions, has the
  /// address of the service, and has no secrets (cache_name()). list() shows it. Call this before
  /// the process is confined; the rest may be called after that. Errors: Io, Unsupported (a source
  /// whose name has the same hash is there), InvalidArgument.
  using Source = CacheDirectory::Source;
  Result<Source> source(std::string_view name) { return directory_->source(name); }

  /// Fills what it can of `out`, the bytes of the object from `offset` on, and returns the ranges
  /// of the object that it could not: in order, apart from each other; none: all is there. `out`
  /// has no bytes that mean anything in them. Requires: the range lies in the object.
  std::vector<ByteRange> get(const Source& source, const CacheObject& object, std::uint64_t offset,
                             std::span<std::byte> out);
  /// Keeps the cells that lie in these bytes of the object as a whole, as far as there is room.
  /// Requires: as for get().
  void put(const Source& source, const CacheObject& object, std::uint64_t offset,
           std::span<const std::byte> bytes);
  /// The least range with `range` in it that put() keeps all of.
  static ByteRange widened(ByteRange range, std::uint64_t object_size);

  /// A text of the source, such as a listing: the whole of it, or nullopt.
  std::optional<std::string> get_text(const Source& source, std::string_view key);
  /// Replaces it, if there is room.
  void put_text(const Source& source, std::string_view key, std::string_view text);

  /// The sources that have anything here, by name.
  std::vector<CachedSource> list() const { return directory_->list(); }
  /// Removes all of a source, also while it is used: its readers fetch it again. Returns the bytes
  /// of disk. Errors: NotFound (nothing of it is there), Io.
  Result<std::uint64_t> clear(std::string_view name) { return directory_->clear(name); }

  CacheStatistics statistics() const;

 private:
  explicit BlockCache(std::unique_ptr<CacheDirectory> directory)
      : directory_(std::move(directory)) {}

  void get_of_block(const Source& source, const BlockName& name, ByteRange wanted,
                    std::span<std::byte> out, std::vector<ByteRange>& missing);
  /// How many of the bytes were written.
  std::uint64_t put_in_block(const Source& source, const BlockName& name, std::size_t first_cell,
                             std::size_t cells, std::span<const std::byte> bytes);

  const std::unique_ptr<CacheDirectory> directory_;
  std::atomic<std::uint64_t> found_{0};
  std::atomic<std::uint64_t> missed_{0};
  std::atomic<std::uint64_t> kept_{0};
  std::atomic<std::uint64_t> refused_{0};
};

}  // namespace ckfs
