// A small file that a user names, as text.
#pragma once

#include <cstddef>
#include <string>

#include "base/error.h"

namespace ckfs {

/// The first `most` + 1 bytes of a file: so a caller sees that it has more than `most`. Waits for
/// the text of a named pipe, if it has a writer. Errors: NotFound, Io.
Result<std::string> read_text_file(const std::string& path, std::size_t most);

}  // namespace ckfs
