// What a daemon that root starts may still do.
#pragma once

#include "base/error.h"

namespace ckfs {

/// Gives up, in this thread and all that it starts, every capability but CAP_SYS_ADMIN, which
/// mounting and unmounting need, and CAP_DAC_READ_SEARCH, by which root reads a source that belongs
/// to somebody else; files are opened as long as the mount lives. Where nothing set-user-ID has to
/// be run any more (root does not need fusermount3), programs started from here gain nothing
/// either. Call it while the process has one thread, before a file of a stranger is parsed. Errors:
/// Io.
Result<void> drop_privileges();

}  // namespace ckfs
