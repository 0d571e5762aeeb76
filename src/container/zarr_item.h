// An Orbax item of plain zarr arrays: a directory for each, a file for each chunk. A chunk that is
// absent would be read as zeros, so all are there.
#pragma once

#include <memory>

#include "container/container.h"
#include "container/item_arrays.h"

namespace ckfs {

/// Errors: Unsupported (a name that no directory of an item has, too many files).
Result<std::shared_ptr<const Container>> make_zarr_item(ItemArrays arrays);

}  // namespace ckfs
