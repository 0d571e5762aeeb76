// An export in the order of its source keeps what is decoded for a step beside what it writes, as
// far as memory has no room for it: each chunk is decoded once.
#pragma once

#include <cstdint>

#include <ckfs/checkpoint.h>

#include "export/out_directory.h"

namespace ckfs {

/// Has decoded chunks kept in a file without a name in OUT, of at most `spare` bytes, unless the
/// user has chosen a spill. No error: what is not kept is decoded again. Requires: nobody reads the
/// view yet, and OUT has the record's directory.
void keep_decoded_chunks(const View& view, const OutDirectory& out, std::uint64_t spare);

}  // namespace ckfs
