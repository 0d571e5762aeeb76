// Errors as values. One closed set of codes serves the library and the errno of the mount
// (src/fuse/to_errno.h). The program's exit code does not depend on the code.
//
// Values of these types are immutable and may be shared between threads.
#pragma once

#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace ckfs {

enum class ErrorCode : std::uint8_t {
  NotFound,         // no such checkpoint, view, file or tensor
  Corrupt,          // the bytes of a file contradict its format
  Unsupported,      // well-formed, but not something ckfs can serve
  InvalidArgument,  // the caller's request has no meaning
  Io,               // the system failed; system_error() is the errno, 0 where there is none
  Stale,            // a source file is no longer the one that was opened
  OutOfMemory,      // more than the budget can ever give, or than the system has
  Internal,         // a bug in ckfs
  Stopped,          // the caller asked for an end before there was a result
  NotDirectory,     // this and the rest come from the mount only (src/fs, src/fuse)
  IsDirectory,
  ReadOnly,
  BadHandle,
  NoAttribute,
};

/// An error: its code, a message of the form `THING: FACT (LIMIT)`, and the errno of the system
/// call behind it (0 where there was none).
class [[nodiscard]] Error {
 public:
  Error(ErrorCode code, std::string message, int system_error = 0)
      : code_(code), system_error_(system_error), message_(std::move(message)) {}

  ErrorCode code() const { return code_; }
  int system_error() const { return system_error_; }
  const std::string& message() const { return message_; }

  /// The same error, seen from further out: `context: message`.
  Error within(const std::string& context) const {
    return {code_, context + ": " + message_, system_error_};
  }

 private:
  ErrorCode code_;
  int system_error_;
  std::string message_;
};

/// A value, or the Error that prevented it. An alias, so that the move to std::expected (C++23) is
/// one line.
template <typename T>
using Result = tl::expected<T, Error>;

using Failure = tl::unexpected<Error>;

}  // namespace ckfs
