// An export of a compressed source whose chunks its files need again and again: an array with the
// layers inside gives a little of each chunk to every file. Each chunk is decoded once, for the
// first file that needs it, and kept beside what is written until the end.
#pragma once

#include <cstdint>

#include <ckfs/checkpoint.h>

#include "export/out_directory.h"

namespace ckfs {

/// Has chunks that `view` decodes several times kept in a file without a name in OUT, of at most
/// `spare` bytes, unless the user has chosen a spill. What is done follows from the view's plan and
/// the budget, and is logged (info). No error: what is not kept is decoded again. Requires: nobody
/// reads the view yet, and OUT has the record's directory.
void keep_decoded_chunks(const View& view, const OutDirectory& out, std::uint64_t spare);

}  // namespace ckfs
