// The interface all reading goes through: a set of numbered, immutable files.
//
// Implementations: io/source_files.h (real files), chunks/chunk_source.h (decoded chunks) and
// chunks/inner_file_source.h (files inside of files) on top of it, tests/support/memory_source.h
// (bytes in memory, faults by script). Safe for concurrent use by several threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"

namespace ckfs {

/// A file's number in its ByteSource. Real files are dense from 0. Sources that make files of
/// others (files inside of files, decoded chunks) number them from higher bounds, which their own
/// headers name.
using FileId = std::uint32_t;

/// Disks transfer whole blocks, between addresses that are multiples of this at both ends.
inline constexpr std::uint64_t kDiskBlock = 4096;

/// Fill `out` with the bytes [offset, offset + out.size()) of `file`.
struct ReadRequest {
  FileId file = 0;
  std::uint64_t offset = 0;
  std::span<std::byte> out;
  /// A disk may write its blocks straight to where they belong: `out` lies as far behind a multiple
  /// of kDiskBlock in memory as `offset` does in the file, and the bytes around it that share
  /// blocks with it may be overwritten.
  bool padded = false;
};

/// Bytes [offset, offset + size) of `file`.
struct FileRange {
  FileId file = 0;
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
};

/// Bytes of a file where they lie in memory.
struct MappedBytes {
  FileId file = 0;
  const std::byte* data = nullptr;
  std::shared_ptr<const void> owner;  // they stay as long as this does
};

inline constexpr std::uint64_t kMostBetween = 4096;  // bytes; see share_access()

/// Whether to join requests for `before` and `after` bytes of a file, which lie `between` bytes
/// apart, into one access that reads the bytes between, too: an access costs as much as copying a
/// few KiB. False if both are more than small and the bytes between exceed a sixteenth of one: a
/// source is not read twice for panels of short rows.
constexpr bool share_access(std::uint64_t before, std::uint64_t between, std::uint64_t after) {
  constexpr std::uint64_t kSmall = 512;
  const std::uint64_t less = before < after ? before : after;
  return between <= kMostBetween && (less < kSmall || less >= 16 * between);
}

/// How a file of a source likes to be read. None of it changes a byte.
struct SourceTraits {
  /// will_need() starts all that a read() would wait for (a disk of this machine): then more
  /// waiting threads do not bring more requests in flight.
  bool heeds_hints = false;
  /// read_once() leaves pages in the page cache that were there before. Then it also suits bytes
  /// that other readers may have read, or will read.
  bool knows_page_cache = false;
  /// read_once() reads padded requests past the page cache. Then hints for them only cost time, and
  /// the requests of one batch are under way together.
  bool reads_past_cache = false;
  /// Bytes stream in order and a jump starts over (network and FUSE file systems): then read() is
  /// best called for one range after another, each once.
  bool streams = false;
  /// Every read waits for another machine, which answers many at once.
  bool is_far = false;

  bool operator==(const SourceTraits&) const = default;
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;

  /// Performs all requests, in any order and possibly at once; near ones may become one access.
  /// On success every `out` is full. On an error the contents of every `out` are unspecified and
  /// must not be used: no partial success, no zeros for missing bytes. Errors: Io (with errno),
  /// Stale (the file is not the one that was recorded); of sources that decode, also Corrupt,
  /// Unsupported, OutOfMemory. May throw std::bad_alloc. Requires: each range lies within
  /// size(file).
  [[nodiscard]] virtual Result<void> read(std::span<const ReadRequest> batch) = 0;

  /// read() of bytes that no reader is expected to ask for again, as for a copy that is made once.
  /// Does not leave them in the host's page cache where that can be avoided.
  [[nodiscard]] virtual Result<void> read_once(std::span<const ReadRequest> batch) {
    return read(batch);
  }

  /// The bytes of `range` where they lie in memory, if all of them are there now and may be looked
  /// at there. `used`: how many of them the caller needs. nullopt: read() the needed ones. A result
  /// computed from mapped bytes is valid only if check_mapped() succeeds afterwards.
  virtual std::optional<MappedBytes> map(const FileRange& /*range*/, std::uint64_t /*used*/) {
    return std::nullopt;
  }

  /// map() of bytes that no reader is expected to ask for again. nullopt also where read_once()
  /// would remove them from the page cache.
  virtual std::optional<MappedBytes> map_once(const FileRange& range, std::uint64_t used) {
    return map(range, used);
  }

  /// Bytes that other computations will need again soon, kept in memory for them. nullopt: they are
  /// too many to keep, or are not kept; read() the needed ones. The caller must verify() the files
  /// afterwards.
  virtual std::optional<MappedBytes> keep(const FileRange& /*range*/) { return std::nullopt; }

  /// Whether the bytes that were looked at were those of the files that were opened. Errors: Stale;
  /// Io (they cannot be looked at; a page could not be had when it was touched). Requires: map() or
  /// map_once() of this source gave them (those of keep() are for verify()).
  [[nodiscard]] virtual Result<void> check_mapped(std::span<const MappedBytes> /*mapped*/) {
    return {};
  }

  /// No reader is active: frees memory that is held for speed alone. Long work, such as writing
  /// blocks to a spill, ends soon after `still` returns false.
  virtual void rest(const std::function<bool()>& /*still*/) {}

  /// A hint: these bytes, and no others, will be read soon, in this order. Starts what can be
  /// started (by a disk, by a server), may open a file for it, waits for no byte, never fails, but
  /// may throw std::bad_alloc.
  virtual void will_need(std::span<const FileRange> /*ranges*/) {}

  virtual SourceTraits traits(FileId /*file*/) const { return {}; }

  /// Checks, without reading, that the files are still the ones that were opened. Call it before
  /// replying with bytes that were read earlier. Errors: Stale, Io.
  [[nodiscard]] virtual Result<void> verify(std::span<const FileId> /*files*/) { return {}; }

  virtual std::uint64_t size(FileId file) const = 0;

  /// The name people know the file by, relative to the checkpoint (of a file from elsewhere, the
  /// path that leads there); for messages and listings.
  virtual const std::string& name(FileId file) const = 0;

  /// One request. Named apart, so that an implementation's read() does not hide it.
  [[nodiscard]] Result<void> read_at(FileId file, std::uint64_t offset, std::span<std::byte> out) {
    const ReadRequest one{file, offset, out};
    return read(std::span(&one, 1));
  }
};

}  // namespace ckfs
