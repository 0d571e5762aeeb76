// The cost of ranks that each have a part of each parameter. A part is an extent, and takes no
// bytes in the files: a thousand links to one small file are a thousand parts of each parameter.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "io/source_files.h"
#include "source/deepspeed/zero_layout.h"

namespace ckfs {

/// Of one opening. Not for concurrent use.
class ExtentBudget {
 public:
  /// Extents, and bytes of files that pay for one more. 512 ranks have 150,000 of a model of 10^9
  /// parameters, in 12 GB of files.
  static constexpr std::uint64_t kBase = std::uint64_t{1} << 18;
  static constexpr std::uint64_t kBytesOfOne = 256;

  /// `files` must outlive it.
  explicit ExtentBudget(const SourceFiles& files) : files_(files) {}

  /// Counts the bytes of the pieces' files, of one with several names once.
  void add_files(std::span<const RankPiece> pieces) {
    for (const RankPiece& piece : pieces) {
      if (!seen_.insert(piece.file).second) continue;
      const Fingerprint& fingerprint = files_.fingerprint(piece.file);
      // Where a file system has no inodes, 0, nothing is known of names.
      const bool is_new =
          fingerprint.inode == 0 || inodes_.emplace(fingerprint.device, fingerprint.inode).second;
      if (is_new) bytes_ += files_.size(piece.file);
    }
  }

  /// Pays for the parts of a parameter on `ranks` ranks. Errors: Corrupt.
  Result<void> take(std::string_view parameter, std::size_t ranks, std::uint64_t extents) {
    extents_ += extents;
    const std::uint64_t most = kBase + bytes_ / kBytesOfOne;
    if (extents_ <= most) return {};
    return fail(ErrorCode::Corrupt,
                "parameter {}: {} parts on {} ranks with those of parameters before it, in files "
                "of {} bytes (limit {})",
                quote(parameter), extents_, ranks, bytes_, most);
  }

 private:
  const SourceFiles& files_;
  std::set<FileId> seen_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> inodes_;
  std::uint64_t bytes_ = 0;
  std::uint64_t extents_ = 0;
};

}  // namespace ckfs
