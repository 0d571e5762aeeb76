// Digests of a view's files, whether or not they were ever written, and the texts that hold them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <ckfs/checkpoint.h>

#include "check/checksum.h"

namespace ckfs {

struct CheckOptions {
  /// Files, or pieces of them, at a time; 0: one for each CPU.
  unsigned jobs = 0;
  /// Ends early: an error Stopped.
  std::stop_token stop{};
  /// Called from several threads, one at a time, with bytes done so far and the total.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};
};

/// The sums of one file.
struct FileDigest {
  std::string path;
  std::map<Algorithm, std::string> sums;

  bool operator==(const FileDigest&) const = default;
};

/// Computes the sums of the files of `view` that have numbers in `files` (indices of
/// View::files()): several files at once, each read once from its begin to its end, whatever the
/// number of `algorithms`. `take` gets them in the order of `files`, on the calling thread. Errors:
/// those of reading, of `take` and of Checksum::create(); Stopped.
Result<void> digest_files(const View& view, const std::vector<std::size_t>& files,
                          const std::vector<Algorithm>& algorithms, const CheckOptions& options,
                          const std::function<Result<void>(const FileDigest&)>& take);

enum class NamesFor : std::uint8_t {
  Programs,
  Terminal,  // those that could do something there (one_line()) as a shell takes them: $'a\033b'
};
/// A line of a check file, with its end: "SUM  PATH", which sha256sum(1) and xxhsum(1) read; with
/// `tagged` "TAG (PATH) = SUM", a line for each algorithm.
std::string check_lines(const FileDigest& digest, bool tagged, NamesFor names = NamesFor::Programs);

/// {version, source, fingerprint, view, layout_version, ckfs,
///  files: [{path, size, exactness, sha256, ...}]}. Requires: each digest is of a file of `view`.
std::string digests_json(const Checkpoint& checkpoint, const View& view, std::string_view source,
                         const std::vector<FileDigest>& digests);

/// Of all these texts; in JSON, sums of algorithms that ckfs does not know are passed over. Errors:
/// InvalidArgument (none of them; in JSON a path twice, or with U+FFFD, which may stand for what is
/// not UTF-8; in lines a path with two sums of a kind; a file without a sum that could be checked).
Result<std::vector<FileDigest>> parse_digests(std::string_view text);

}  // namespace ckfs
