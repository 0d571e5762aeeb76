// The one table from Error to errno: the answer to a program when ckfs cannot do what it asked.
#pragma once

#include "base/error.h"

namespace ckfs {

/// A positive errno. The errno of the source's own system call is not passed on: a reader of a view
/// cannot do anything about an EACCES or ENXIO that belongs to a file it does not know; the log has
/// it.
int to_errno(ErrorCode code);

}  // namespace ckfs
