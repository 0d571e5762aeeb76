// What a fetcher that a server has taken over may still do: talk to servers, read files (which
// credentials it has, it had anyway), and answer its client. It starts no program, writes no file
// and makes no process.
#pragma once

#include "base/error.h"

namespace ckfs {

/// For all threads of this process that are started from here on. False: the kernel has no filter,
/// or the program is built with a sanitizer. Requires: one thread. Errors: Io.
Result<bool> confine_fetcher();

}  // namespace ckfs
