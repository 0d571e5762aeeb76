// Whether a copy of a view is right: byte for byte, or by digests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
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
  /// A file that records which ranges were compared and are equal (resume_file.h), for a run that
  /// continues after an interruption. Ranges of a file of the copy that has changed since are
  /// compared again. The file is removed when all is compared without a difference. Empty: no such
  /// file. Not with a sample.
  std::string resume{};
};

struct Difference {
  std::string path;
  std::string text;  // "is missing"

  bool operator==(const Difference&) const = default;
};

struct VerifyResult {
  std::uint64_t files = 0;       // compared
  std::uint64_t bytes = 0;       // compared
  std::uint64_t bytes_kept = 0;  // of them, by an earlier run
  std::uint64_t pieces = 0;      // of kVerifyPiece at most, of all files of the right size
  std::uint64_t compared = 0;    // of them; both are 0 of verify_digests()
  std::uint64_t differing = 0;   // files, also missing and extra ones
  /// The first kMostDifferences of them, by path.
  std::vector<Difference> differences;
};

/// The members of `ckfs verify --json` that come from a result of VerifyOptions::sample `sample`.
nlohmann::ordered_json json_members(const VerifyResult& result, double sample);

inline constexpr std::uint64_t kVerifyPiece = std::uint64_t{1} << 20;
inline constexpr std::size_t kMostDifferences = 100;

/// Compares the files of `view` with those below `copy`. Names a file that differs with the tensor
/// and element of its first wrong byte. A file that is missing, is not a regular file, or has
/// another size is a difference, too. So is a file that the view does not have, except in the
/// folders where an export and a download from the hub keep records. Reads no tensor byte where
/// sizes differ. Errors: those of reading either
/// side (then nothing is known); Stopped (with the amount that was compared); those of
/// ResumeFile::open().
Result<VerifyResult> verify_directory(const View& view, const std::filesystem::path& copy,
                                      const VerifyOptions& options);

/// Compares the files of `view` with `digests` of a copy, as parse_digests() gives them. `name` is
/// what messages call the list. Of the options, `resume` keeps the digests of the view that are
/// computed. Errors: those of digest_files() and DigestJournal::open().
Result<VerifyResult> verify_digests(const View& view, const std::vector<FileDigest>& digests,
                                    const std::string& name, const VerifyOptions& options);

/// What byte `offset` of a file is: "tensor NAME, element [1, 2]", "the header"...
/// Requires: file < View::files().size(), offset < its size.
std::string place_in_view(const View& view, std::size_t file, std::uint64_t offset);

}  // namespace ckfs
