// Digests of a view's files, whether or not they were ever written, and the texts that hold them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckfs/check.h>
#include <ckfs/checkpoint.h>

#include "check/checksum.h"
#include "check/resume_file.h"

namespace ckfs {

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

/// digest_view() of the files of `view` that have numbers in `files` (indices of View::files()).
/// DigestOptions::each gets the sums in the order of `files`. A file whose sums are in `journal` is
/// not read; the others are added to it. Of the options, `resume` is not used. Errors: those of
/// reading, of `each`, of `journal` and of Checksum::create(); Stopped.
Result<void> digest_files(const View& view, const std::vector<std::size_t>& files,
                          const DigestOptions& options, DigestJournal* journal = nullptr);

enum class NamesFor : std::uint8_t {
  Programs,
  Terminal,  // names that could act on a terminal (one_line()) are quoted as for a shell: $'a\033b'
};
/// A line of a check file, with its end: "SUM  PATH", which sha256sum(1) and xxhsum(1) read; with
/// `tagged` "TAG (PATH) = SUM", a line for each algorithm.
std::string check_lines(const FileDigest& digest, bool tagged, NamesFor names = NamesFor::Programs);

/// {version, source, fingerprint, view, layout_version, ckfs,
///  files: [{path, size, exactness, sha256, ...}]}. Requires: each digest is of a file of `view`.
std::string digests_json(const View& view, std::string_view source,
                         const std::vector<FileDigest>& digests);

}  // namespace ckfs
