// An Orbax item in one OCDBT database: a manifest, a file of tree nodes, and data files of chunks
// that end at 2 GiB, or at 65,536 chunks. Names, sizes and bytes of all but the chunks follow from
// the definition: no byte of a tensor is needed for them.
#pragma once

#include <memory>

#include "container/container.h"
#include "container/item_arrays.h"

namespace ckfs {

/// Bytes of a data file at most, unless it is one chunk: what Orbax writes, and what a copy can
/// resume at.
inline constexpr std::uint64_t kDataFileBytes = std::uint64_t{2} << 30;
/// Chunks of a data file at most: a file that is open has an expression for each, some 400 bytes.
inline constexpr std::uint64_t kDataFileChunks = std::uint64_t{1} << 16;

/// Errors: Unsupported (an array that is larger than a file system holds, more data files than
/// kMostFiles).
Result<std::shared_ptr<const Container>> make_ocdbt_item(ItemArrays arrays);

}  // namespace ckfs
