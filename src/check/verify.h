// Whether a copy of a view is right: byte for byte, or by digests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <ckfs/checkpoint.h>

#include "check/digest.h"

namespace ckfs {

struct VerifyOptions {
  CheckOptions common{};
  /// The share of the pieces that are compared, chosen by chance: greater than 0, at most 1.
  double sample = 1;
  std::uint64_t seed = 0;  // of that chance
};

struct VerifyResult {
  std::uint64_t files = 0;      // compared
  std::uint64_t bytes = 0;      // compared
  std::uint64_t pieces = 0;     // of kVerifyPiece at most, of all files of the right size
  std::uint64_t compared = 0;   // of them; both are 0 of verify_digests()
  std::uint64_t differing = 0;  // files, with those that lack or are too much
  /// The first kMostDifferences of them, a line each, by path.
  std::vector<std::string> differences;
};

inline constexpr std::uint64_t kVerifyPiece = std::uint64_t{1} << 20;
inline constexpr std::size_t kMostDifferences = 100;

/// Compares the files of `view` with those below `copy`. Of a file that differs, the first byte is
/// named by its tensor and element; a file that lacks, is too much (but for an export's own
/// folder), is no file, or has another size, is a difference. No tensor byte is read where sizes
/// differ. Errors: what could not be read, on either side: then nothing is known; Stopped
/// (stopped).
Result<VerifyResult> verify_directory(const View& view, const std::filesystem::path& copy,
                                      const VerifyOptions& options);

/// Compares the files of `view` with `digests` of a copy, as parse_digests() gives them. Errors:
/// those of digest_files().
Result<VerifyResult> verify_digests(const View& view, const std::vector<FileDigest>& digests,
                                    const CheckOptions& options);

/// What byte `offset` of a file is: "tensor NAME, element [1, 2]", "the header"...
/// Requires: file < View::files().size(), offset < its size.
std::string place_in_view(const View& view, std::size_t file, std::uint64_t offset);

}  // namespace ckfs
