// Digests of a view's files, whether or not they were ever written, and the texts that hold them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckfs/checkpoint.h>

#include "check/checksum.h"
#include "check/resume_file.h"

namespace ckfs {

struct CheckOptions {
  /// Files, or pieces of them, at a time; 0: one for each CPU.
  unsigned jobs = 0;
  /// Ends the work early, with an error Stopped.
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

/// Sums of a view's files that an earlier, interrupted run has computed (resume_file.h).
class DigestJournal {
 public:
  /// Sums of another source, view, layout version or set of algorithms are not taken over. Errors:
  /// those of ResumeFile::open().
  static Result<DigestJournal> open(const std::string& path, const View& view,
                                    const std::vector<Algorithm>& algorithms);

  /// nullptr: not all sums of this file are known.
  const FileDigest* find(const std::string& path) const;
  Result<void> add(const FileDigest& digest);
  Result<void> remove() { return file_.remove(); }

 private:
  DigestJournal(ResumeFile file, std::map<std::string, FileDigest> known)
      : file_(std::move(file)), known_(std::move(known)) {}

  ResumeFile file_;
  std::map<std::string, FileDigest> known_;
};

/// Computes the sums of the files of `view` that have numbers in `files` (indices of
/// View::files()). Works on several files at once. Reads each file once, from start to end,
/// whatever the number of `algorithms`. `take` gets the sums in the order of `files`, on the
/// calling thread. A file whose sums are in `journal` is not read; the others are added to it.
/// Errors: those of reading, of `take`, of `journal` and of Checksum::create(); Stopped.
Result<void> digest_files(const View& view, const std::vector<std::size_t>& files,
                          const std::vector<Algorithm>& algorithms, const CheckOptions& options,
                          const std::function<Result<void>(const FileDigest&)>& take,
                          DigestJournal* journal = nullptr);

enum class NamesFor : std::uint8_t {
  Programs,
  Terminal,  // names that could act on a terminal (one_line()) are quoted as for a shell: $'a\033b'
};
/// A line of a check file, with its end: "SUM  PATH", which sha256sum(1) and xxhsum(1) read; with
/// `tagged` "TAG (PATH) = SUM", a line for each algorithm.
std::string check_lines(const FileDigest& digest, bool tagged, NamesFor names = NamesFor::Programs);

/// {version, source, fingerprint, view, layout_version, ckfs,
///  files: [{path, size, exactness, sha256, ...}]}. Requires: each digest is of a file of `view`.
std::string digests_json(const Checkpoint& checkpoint, const View& view, std::string_view source,
                         const std::vector<FileDigest>& digests);

/// Reads any of these texts. Sums in JSON of algorithms that ckfs does not know are passed over.
/// Errors: InvalidArgument (none of these texts; a path twice in JSON, or with U+FFFD, which may
/// stand for bytes that are not UTF-8; two different sums of one kind for a path; a file without a
/// sum that can be checked).
Result<std::vector<FileDigest>> parse_digests(std::string_view text);

}  // namespace ckfs
