// The bytes that one computation needs of the source: mapped where they are in memory already, and
// read in one batch where they are not.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/byte_source.h"
#include "base/error.h"

namespace ckfs {

/// In this order: map() and add(), fetch(), the computation, check(). Not for concurrent use.
class SourceBytes {
 public:
  explicit SourceBytes(ByteSource& source) : source_(source) {}

  /// Where the bytes of `range` lie; nullptr: add() them. `used`: how many of them are needed.
  const std::byte* map(const FileRange& range, std::uint64_t used);

  /// The same for bytes that other computations will need, too (ByteSource::keep).
  const std::byte* keep(const FileRange& range);

  /// `out` is to be filled by fetch(). `padded`: see ReadRequest.
  void add(FileId file, std::uint64_t offset, std::span<std::byte> out, bool padded = false) {
    reads_.push_back({file, offset, out, padded});
  }

  /// Fills all that was added. Errors: those of the source.
  Result<void> fetch();

  /// Checks that mapped and kept bytes were those of the opened files: call it before using a
  /// result. Errors: Stale, Io.
  Result<void> check() const;

  /// The files that bytes came from, in order, each once: those on which the result depends.
  std::vector<FileId> files() const;

 private:
  ByteSource& source_;
  std::vector<MappedBytes> mapped_;
  std::vector<MappedBytes> kept_;
  std::vector<ReadRequest> reads_;
};

}  // namespace ckfs
