// Digests of a view's files, and whether a copy of a view is right: `ckfs digest` and `ckfs verify`
// as functions. Neither writes the bytes that it computes.
//
//   auto digests = ckfs::digest_view(*view);
//   auto result = ckfs::verify_copy(*view, "out");
//   if (result && result->differing == 0) ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <ckfs/checkpoint.h>
#include <ckfs/error.h>

namespace ckfs {

enum class Algorithm : std::uint8_t {
  Sha256,  // in hex, as sha256sum(1) prints it
  Crc32c,  // in base64 of its four bytes, the highest first, as cloud stores list it
  Xxh128,  // XXH3 of 128 bits, in hex, as xxhsum(1) prints it
};

inline constexpr Algorithm kAlgorithms[] = {Algorithm::Sha256, Algorithm::Crc32c,
                                            Algorithm::Xxh128};

/// "sha256", "crc32c", "xxh128": on the command line and in JSON.
std::string_view name(Algorithm algorithm);
std::optional<Algorithm> parse_algorithm(std::string_view name);

/// The sums of one file.
struct FileDigest {
  std::string path;  // in the view
  std::map<Algorithm, std::string> sums;

  bool operator==(const FileDigest&) const = default;
};

struct DigestOptions {
  /// All of them are computed of one read.
  std::vector<Algorithm> algorithms = {Algorithm::Sha256};
  /// Files, or pieces of them, at a time; 0: one for each CPU.
  unsigned jobs = 0;
  /// Ends the work early, with an error Stopped.
  std::stop_token stop{};
  /// Called from several threads, one at a time, with bytes done so far and the total.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};
  /// Called by the thread that called, with the sums of each file as soon as those of all files
  /// before it are known. An error ends the work, which then gives that error.
  std::function<Result<void>(const FileDigest& digest)> each{};
  /// A file that records the sums that are known, so that a call after an interruption continues
  /// from there. It is made where it is missing, and stays: the caller removes it when it has
  /// stored the result. Its sums of another source, view or set of algorithms are not used.
  /// Empty: no such file.
  std::filesystem::path resume{};
};

struct DigestResult {
  std::vector<FileDigest> files;  // in the order of View::files()
  std::uint64_t files_kept = 0;   // of them, from DigestOptions::resume
};

/// The sums of all files of a view. Reads each file once, from start to end, several at once.
/// Errors: those of ViewFile::read() and of DigestOptions::each; Stopped; OutOfMemory; of
/// DigestOptions::resume InvalidArgument (not a file that ckfs made for this; other users may write
/// to it; another process has it), NotFound and Io; InvalidArgument (no algorithm; this is a forked
/// child).
Result<DigestResult> digest_view(const View& view, const DigestOptions& options = {});

/// Reads a list of digests: lines as sha256sum(1) and xxhsum(1) print them, lines with a tag
/// ("SHA256 (PATH) = SUM"), or JSON as `ckfs digest --json` prints it. Sums in JSON of algorithms
/// that ckfs does not know are passed over. Errors: InvalidArgument (none of these texts; a path
/// twice in JSON, or with U+FFFD, which may stand for bytes that are not UTF-8; two different sums
/// of one kind for a path; a file without a sum that can be checked).
Result<std::vector<FileDigest>> parse_digests(std::string_view text);

struct VerifyOptions {
  /// Pieces at a time; 0: one for each CPU.
  unsigned jobs = 0;
  /// Ends the work early, with an error Stopped.
  std::stop_token stop{};
  /// Called from several threads, one at a time, with bytes done so far and the total.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};
  /// The share of the pieces that are compared, chosen by chance: greater than 0, at most 1.
  double sample = 1;
  /// Of that chance; nullopt: another one with each call.
  std::optional<std::uint64_t> seed{};
  /// A file that records which ranges were compared and are equal, for a call that continues after
  /// an interruption. Ranges of a file of the copy that has changed since are compared again. The
  /// file is removed when all is compared without a difference. Empty: no such file. Not with a
  /// sample.
  std::filesystem::path resume{};
};

struct Difference {
  std::string path;  // in the view, or in the copy
  std::string text;  // "is missing"

  bool operator==(const Difference&) const = default;
};

/// The length of a piece, in bytes.
inline constexpr std::uint64_t kVerifyPiece = std::uint64_t{1} << 20;
inline constexpr std::size_t kMostDifferences = 100;

struct VerifyResult {
  std::uint64_t files = 0;       // compared
  std::uint64_t bytes = 0;       // compared
  std::uint64_t bytes_kept = 0;  // of them, by an earlier run
  std::uint64_t pieces = 0;      // of kVerifyPiece at most, of all files of the right size
  std::uint64_t compared = 0;    // of them; both are 0 of verify_digests()
  std::uint64_t differing = 0;   // files, also missing and extra ones; 0: the copy is right
  /// The first kMostDifferences of them, by path.
  std::vector<Difference> differences;
};

/// Compares the files of `view` with those below `copy`. A difference is not an error. Names a file
/// that differs with the tensor and element of its first wrong byte. A file that is missing, is not
/// a regular file, or has another size is a difference, too. So is a file that the view does not
/// have, except in the folders where an export and a download from the hub keep records. Reads no
/// tensor byte where sizes differ. Errors: those of reading either side (then nothing is known);
/// Stopped (with the amount that was compared); InvalidArgument (the sample is out of range, or is
/// given with `resume`; this is a forked child); of VerifyOptions::resume as DigestOptions::resume.
Result<VerifyResult> verify_copy(const View& view, const std::filesystem::path& copy,
                                 const VerifyOptions& options = {});

/// Compares the files of `view` with `digests` of a copy, as parse_digests() gives them. `name` is
/// what messages call the list. Of the options, `sample` is 1, and `resume` keeps the digests of
/// the view that are computed. Errors: those of digest_view(); InvalidArgument (a sample; a file
/// without a sum, or with two different sums of one kind).
Result<VerifyResult> verify_digests(const View& view, const std::vector<FileDigest>& digests,
                                    const std::string& name, const VerifyOptions& options = {});

}  // namespace ckfs
