// docs/SEMANTICS.md lists the same codes for users. Unsupported and Corrupt are EIO, not ENOTSUP or
// EILSEQ: a loader that meets them in read(2) knows what EIO means, and mostly nothing else.

#include "fuse/to_errno.h"

#include <cerrno>

namespace ckfs {

int to_errno(ErrorCode code) {
  switch (code) {
    case ErrorCode::NotFound:
      return ENOENT;
    case ErrorCode::Corrupt:
    case ErrorCode::Unsupported:
    case ErrorCode::Io:
    case ErrorCode::Internal:
      return EIO;
    case ErrorCode::InvalidArgument:
      return EINVAL;
    case ErrorCode::Stale:
      return ESTALE;
    case ErrorCode::OutOfMemory:
      return ENOMEM;
    case ErrorCode::Stopped:
      return EINTR;
    case ErrorCode::NotDirectory:
      return ENOTDIR;
    case ErrorCode::IsDirectory:
      return EISDIR;
    case ErrorCode::ReadOnly:
      return EROFS;
    case ErrorCode::BadHandle:
      return EBADF;
    case ErrorCode::NoAttribute:
      return ENODATA;
  }
  return EIO;
}

}  // namespace ckfs
