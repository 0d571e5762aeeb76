// What reading a view takes of its source. Computed from the plan alone; reads no byte.
#pragma once

#include <cstdint>

#include <ckfs/checkpoint.h>

namespace ckfs {

/// Bytes on other machines that a reader of all files of the view needs, each counted once; 0: all
/// is on this machine. Of a stored array that is shown in part, all counts; what a disk cache has
/// counts, too.
std::uint64_t bytes_elsewhere(const View& view);

}  // namespace ckfs
