// What interrupted work has done already: a file of lines, which the next run reads.
//
// The first line says what the lines are true of (source, view, options). Lines made for anything
// else are never believed: the file begins anew then.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

namespace ckfs {

/// Safe for concurrent use by several threads.
class ResumeFile {
 public:
  /// Opens the file, or makes it. `header` begins with kBegin and is one line. `take` gets the
  /// lines that an earlier run with the same header left, in order. If it gives false, this line
  /// and those behind it are broken (a power failure may leave anything) and are removed. Errors:
  /// InvalidArgument (not a file that ckfs made for this; others may write to it; another process
  /// has it), NotFound, Io, and those of `take`.
  static Result<ResumeFile> open(const std::string& path, const std::string& header,
                                 const std::function<bool(std::string_view line)>& take);
  static constexpr std::string_view kBegin = "# ckfs ";

  /// Appends lines, with their ends.
  Result<void> add(std::string_view lines);
  /// Removes the file: the work is done.
  Result<void> remove();

 private:
  ResumeFile(std::string path, UniqueFd fd, std::uint64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  std::string path_;
  UniqueFd fd_;  // locked
  // Behind a pointer, to be movable.
  std::unique_ptr<Mutex> mutex_ = std::make_unique<Mutex>();
  std::uint64_t size_ = 0;  // under mutex_
};

/// Replaces a file by `text`. At any time, after a crash too, it is the old one or the new one.
/// Errors: InvalidArgument (the path is of something else than a regular file), NotFound, Io.
Result<void> replace_file(const std::string& path, std::string_view text);

}  // namespace ckfs
