// Disk in OUT for decoded chunks that memory has no room for, so that an export in the order of its
// source decodes each chunk once.
#pragma once

#include <cstdint>

#include <ckfs/checkpoint.h>

#include "export/out_directory.h"

namespace ckfs {

/// Keeps decoded chunks in a nameless file in OUT, of at most `spare` bytes, unless the user has
/// chosen a spill. Never fails: chunks that are not kept are decoded again. Requires: the view is
/// not being read yet, and OUT has the record's directory.
void keep_decoded_chunks(const View& view, const OutDirectory& out, std::uint64_t spare);

}  // namespace ckfs
